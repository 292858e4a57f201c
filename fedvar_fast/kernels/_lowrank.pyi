from fedvar_fast._typing import FloatArray

def thin_qr(q: FloatArray, r: FloatArray) -> None: ...
def thin_svd(a: FloatArray, u: FloatArray, s: FloatArray, vt: FloatArray) -> None: ...
def retract(
    u: FloatArray,
    s: FloatArray,
    v: FloatArray,
    row_part: FloatArray,
    column_part: FloatArray,
    step: float,
    u_new: FloatArray,
    s_new: FloatArray,
    v_new: FloatArray,
) -> None: ...
def randomized_svd(
    a: FloatArray,
    sketch: FloatArray,
    rank: int,
    n_power_iter: int,
    tol: float,
    tiles: bool,
    n_threads: int,
    u: FloatArray,
    s: FloatArray,
    vt: FloatArray,
) -> int: ...
