package io.djltp.backend;

import ai.djl.Device;

import io.djltp.collective.Communicator;
import io.djltp.job.Job;
import io.djltp.job.JobOptions;
import io.djltp.job.LaunchEnvironment;

import java.time.Duration;
import java.util.List;

/** What the choice of a backend needs to know of MPI. */
final class MpiBackend {

    private MpiBackend() {}

    static Job join(LaunchEnvironment environment, JobOptions.Builder options) {
        throw new UnsupportedOperationException();
    }

    static boolean isLaunched() {
        return false;
    }

    static String obstacle(List<Device> devices, Job job) {
        return "mpi is not there yet";
    }

    static List<Communicator> connect(Duration timeout, Job job) {
        throw new UnsupportedOperationException();
    }
}
