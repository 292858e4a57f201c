from fedvar_fast._typing import FloatArray

def admm(
    inverse: FloatArray,
    constant: FloatArray,
    coupling: float,
    low_share: float,
    nuclear_threshold: float,
    l1_threshold: float,
    max_entry: float,
    has_low: bool,
    has_sparse: bool,
    has_box: bool,
    n_iter: int,
    relaxation: float,
    z_low: FloatArray,
    z_sparse: FloatArray,
    z_box: FloatArray,
    u_low: FloatArray,
    u_sparse: FloatArray,
    u_box: FloatArray,
    residuals: FloatArray,
) -> None: ...
