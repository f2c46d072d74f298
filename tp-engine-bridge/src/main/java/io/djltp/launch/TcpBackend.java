package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.GroupFailure;
import io.djltp.collective.tcp.TcpCommunicator;
import io.djltp.environment.LaunchEnvironment;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.JobOptions;
import io.djltp.sockets.RankSockets;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** The {@code tcp} backend: sockets between all ranks, which the job connects. */
final class TcpBackend extends Backend {

    /** How long a broken connection may wait for its reason. */
    private static final Duration REASON_TIME = Duration.ofSeconds(3);

    TcpBackend() {
        super("tcp");
    }

    /** {@inheritDoc} */
    @Override
    String obstacle(List<Device> devices, Job job) {
        return devices.stream().anyMatch(Device::isGpu)
                ? "the backend tcp is for CPUs, not for " + devices
                : null;
    }

    /** {@inheritDoc} */
    @Override
    boolean isAutomatic(List<Device> devices, Job job) {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
        if (job != null) {
            return connect(job, timeout);
        }
        // all ranks are here, and the backend is to be tried
        LaunchEnvironment alone = new LaunchEnvironment("none", 0, 1, 0, "127.0.0.1", 0);
        JobOptions options = JobOptions.builder().setRanks(devices.size()).build();
        try (Job ofOneProcess = Job.join(alone, options)) {
            return connect(ofOneProcess, timeout);
        }
    }

    private static List<Communicator> connect(Job job, Duration timeout) {
        SocketChannel[][] mesh = RankSockets.connect(job, "world");
        List<Communicator> group = new ArrayList<>(mesh.length);
        GroupFailure failure = new GroupFailure(); // the ranks of a process fail together
        try {
            for (int i = 0; i < mesh.length; i++) {
                group.add(
                        new TcpCommunicator(
                                mesh[i],
                                job.getFirstRank() + i,
                                timeout,
                                failure,
                                loss -> explain(job, loss)));
            }
        } catch (IOException e) {
            throw new CollectiveException("the sockets of the ranks cannot be used: " + e, e);
        }
        return group;
    }

    /** Finds out why a rank was lost: that it failed or died is known to the job. */
    private static CollectiveException explain(Job job, CollectiveException loss) {
        JobFailedException reason = job.awaitFailure(REASON_TIME);
        return reason == null ? loss : new CollectiveException(reason.getMessage(), reason);
    }
}
