from fedvar_fast._typing import FloatArray, IntArray

def coordinate_lasso(
    xx: FloatArray,
    linear: FloatArray,
    energy: FloatArray,
    n_rows: float,
    penalty: float,
    max_iter: int,
    tol: float,
    n_threads: int,
    coef: FloatArray,
    gaps: FloatArray,
    iterations: IntArray,
) -> None: ...
