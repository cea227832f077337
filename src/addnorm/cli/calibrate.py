"""`addnorm calibrate`: measure again which kernels are fastest on this machine."""

from addnorm.cli.where import working


def calibrate() -> None:
    """Measure again which kernels are fastest on this machine, and keep the result.

    It is measured once, on first use, and kept in the folder of caches (`ADDNORM_CACHE`) under
    processor, threads and versions; a run keeps what it began with. Keep the machine quiet for the
    second that it takes. Example: `addnorm calibrate`.
    """
    from addnorm.cli.terminal import output
    from addnorm.runs.files.training_machine import machine_table
    from addnorm.tuning.calibration import calibrated

    with working("measuring this machine"):
        measured = calibrated(again=True)
    output().print(machine_table(measured))
