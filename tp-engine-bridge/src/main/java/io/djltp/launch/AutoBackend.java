package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.Communicator;
import io.djltp.job.Job;

import java.time.Duration;
import java.util.List;

/** Stands for the backend that {@link Connector} chooses. */
final class AutoBackend extends Backend {

    AutoBackend() {
        super("auto");
    }

    /** {@inheritDoc} */
    @Override
    String obstacle(List<Device> devices, Job job) {
        return Connector.choose(this, devices, job).obstacle(devices, job);
    }

    /** {@inheritDoc} */
    @Override
    boolean isAutomatic(List<Device> devices, Job job) {
        return false;
    }

    /** {@inheritDoc} */
    @Override
    List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
        return Connector.choose(this, devices, job).connect(devices, job, timeout);
    }
}
