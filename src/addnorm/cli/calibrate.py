"""`addnorm calibrate`: measure again which kernels are fastest on this machine."""


def calibrate() -> None:
    """Measure again which kernels are fastest on this machine, and keep the result.

    It is measured once, on first use, and kept in the folder of caches (`ADDNORM_CACHE`) under
    processor, threads and versions; a run keeps what it began with. Keep the machine quiet for the
    second that it takes. Example: `addnorm calibrate`.
    """
    from rich.console import Console

    from addnorm.nn.calibration import calibrated
    from addnorm.runs.machine import machine_table

    Console(highlight=False).print(machine_table(calibrated(again=True)))
