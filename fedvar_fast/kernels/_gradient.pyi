from fedvar_fast._typing import FloatArray

def gradient_pair(
    u: FloatArray,
    s: FloatArray,
    v: FloatArray,
    xx: FloatArray,
    yx: FloatArray,
    n_rows: float,
    vxx: FloatArray,
    core: FloatArray,
    yxv: FloatArray,
    row_part: FloatArray,
    column_part: FloatArray,
) -> None: ...
