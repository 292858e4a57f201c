from fedvar_fast._typing import AnyArray, FloatArray

def clipped_sums(
    y: AnyArray,
    center: FloatArray,
    inverse: FloatArray,
    thin: FloatArray,
    s: FloatArray,
    row_squares: FloatArray,
    order: int,
    clip_norm: float,
    segment: int,
    block: int,
    n_threads: int,
    partial: FloatArray,
    counts: AnyArray,
) -> None: ...
