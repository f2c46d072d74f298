package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.Communicator;
import io.djltp.collective.GroupFailure;
import io.djltp.collective.mpi.MpiCommunicator;
import io.djltp.collective.mpi.MpiEnvironment;
import io.djltp.collective.mpi.MpiLibrary;
import io.djltp.job.Job;

import java.time.Duration;
import java.util.List;

/** The {@code mpi} backend: the processes that {@code mpirun} or Slurm has started. */
final class MpiBackend extends Backend {

    MpiBackend() {
        super("mpi");
    }

    /** {@inheritDoc} */
    @Override
    String obstacle(List<Device> devices, Job job) {
        if (devices.stream().anyMatch(Device::isGpu)) {
            return "the backend mpi is for CPUs, not for " + devices + ": use nccl";
        }
        if (devices.size() > 1) {
            return "the backend mpi has one rank in each process, not "
                    + devices.size()
                    + ": start a process for each rank (mpirun -n "
                    + devices.size() * (job == null ? 1 : job.getProcesses())
                    + "), or use tcp";
        }
        String missing = MpiLibrary.whyNot().orElse(MpiEnvironment.refusal(System.getenv()));
        if (missing != null) {
            return missing;
        }
        int processes = job == null ? 1 : job.getProcesses();
        int started = MpiRendezvous.start().getSize();
        return started == processes
                ? null
                : "MPI has started "
                        + started
                        + " processes, and the job has "
                        + processes
                        + ": start all of them with one mpirun";
    }

    /** {@inheritDoc} */
    @Override
    boolean isAutomatic(List<Device> devices, Job job) {
        return devices.size() == 1
                && MpiEnvironment.launchedByMpi(System.getenv())
                && MpiLibrary.whyNot().isEmpty();
    }

    /** {@inheritDoc} */
    @Override
    List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
        return List.of(MpiCommunicator.create(MpiRendezvous.start(), timeout, new GroupFailure()));
    }
}
