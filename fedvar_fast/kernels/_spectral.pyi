from fedvar_fast._typing import FloatArray

def accumulate_waves(
    y: FloatArray,
    center: FloatArray,
    order: int,
    length: int,
    first_block: int,
    n_blocks: int,
    basis: FloatArray,
    with_seams: bool,
    n_threads: int,
    z: FloatArray,
    waves: FloatArray,
    heads: FloatArray,
    tails: FloatArray,
    totals: FloatArray,
    even: FloatArray,
    odd: FloatArray,
    top: FloatArray,
) -> None: ...
