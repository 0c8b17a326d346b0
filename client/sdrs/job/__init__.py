"""The job that this process belongs to, if a scheduler started it: what it was told, and what it tells back.

================  ======================================================================================
``environment``   what the scheduler and the launcher say by variables: the job, its attempt, this rank
``causes``        why to save now: a warning, an interval that is over
``agreement``     at which step: all ranks at the same one, without a collective
``rank``          both behind one lock, for the training and for the thread of the beats
``notes``         the notes that go to the controller and come from it, as JSON
``beats``         the thread that posts and reads them
``signals``       SIGTERM and SIGUSR1 are warnings; SIGUSR2 has the stacks written
``gpus``          how busy the GPU of this process is
``current``       ``sdrs.current_job()``: all of it behind one object
``pace``          ``checkpoints.should_save()``, in a job and outside of any
================  ======================================================================================
"""
