"""The reconcile loop: observe, plan, stage, call, report."""
