from fedvar_fast._typing import AnyArray, FloatArray

def top_block_row(
    y: FloatArray,
    center: FloatArray,
    order: int,
    segment: int,
    block: int,
    lags_apart: int,
    tiles: bool,
    n_threads: int,
    partial: FloatArray,
    partial_sum: FloatArray,
    doubtful: AnyArray,
) -> None: ...
def extend_block_row(
    top: FloatArray,
    total: FloatArray,
    head: FloatArray,
    tail: FloatArray,
    order: int,
    xx: FloatArray,
    x_sum: FloatArray,
) -> None: ...
