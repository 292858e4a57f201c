from fedvar_fast._typing import AnyArray, FloatArray

def accumulate_waves(
    y: FloatArray,
    center: FloatArray,
    order: int,
    size: int,
    chunk: int,
    tile: int,
    table: FloatArray,
    real: AnyArray,
    lag_cosines: FloatArray,
    lag_sines: FloatArray,
    lowest: bool,
    tiles: bool,
    n_threads: int,
    z: FloatArray,
    folded: FloatArray,
    memory: FloatArray,
    spectra: FloatArray,
    totals: FloatArray,
    doubtful: AnyArray,
    top: FloatArray,
) -> None: ...
