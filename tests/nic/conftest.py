"""What is in guest/ runs in the guest, where `python -m tests.nic` names it, and nowhere else."""
collect_ignore = ["guest"]
