package io.djltp.internal.sockets;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.environment.LaunchEnvironment;
import io.djltp.internal.collective.GroupFailure;
import io.djltp.internal.collective.tcp.TcpCommunicator;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.JobOptions;
import io.djltp.job.Proxy;
import io.djltp.testing.Unchecked;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * A process with two of four ranks. Before the port of process 0 stands a proxy, which changes a
 * bit of each connection on which so much comes from the ranks of process 1.
 */
public final class TamperedProcess {

    private static final int CALLS = 100;
    private static final int ELEMENTS = 20_000;
    private static final int CHANGED = 500_000; // the byte of the connection

    private TamperedProcess() {}

    /**
     * Runs the process, and reports how each rank of it ends.
     *
     * @param args nothing: the environment says which process it is
     * @throws Exception if anything else goes wrong than what is to
     */
    public static void main(String[] args) throws Exception {
        JobOptions options = JobOptions.builder().setRanks(4).build();
        try (Job job = Job.join(LaunchEnvironment.detect(System.getenv()).orElseThrow(), options)) {
            RankChannel[][] mesh =
                    RankSockets.connect(
                            job,
                            "tampered",
                            port -> job.getProcess() == 0 ? startProxy(port) : port);
            GroupFailure failure = new GroupFailure();
            List<Communicator> group = new ArrayList<>();
            for (int i = 0; i < mesh.length; i++) {
                group.add(
                        new TcpCommunicator(
                                mesh[i],
                                job.getFirstRank() + i,
                                RankThreads.TIMEOUT,
                                failure,
                                loss -> explain(job, loss)));
            }
            job.onFailure(e -> group.forEach(each -> each.abort(e)));
            Throwable[] outcomes =
                    RankThreads.outcomes(
                            group,
                            (world, manager) -> {
                                NDArray x = manager.ones(new Shape(ELEMENTS));
                                try {
                                    for (int i = 0; i < CALLS; i++) {
                                        world.allReduce(x, ReduceOp.MAX);
                                    }
                                } catch (CollectiveException e) {
                                    job.fail(world.getRank(), e); // as RankPool does
                                    throw e;
                                }
                            });
            for (int i = 0; i < outcomes.length; i++) {
                String end = outcomes[i] == null ? "well" : outcomes[i].getMessage();
                String line = "RANK " + (job.getFirstRank() + i) + ": " + end + "\n";
                System.out.write(line.getBytes(StandardCharsets.UTF_8));
                System.out.flush();
            }
            group.forEach(Communicator::close);
        }
    }

    private static CollectiveException explain(Job job, CollectiveException loss) {
        JobFailedException reason = job.awaitFailure(Duration.ofSeconds(3));
        return reason == null ? loss : new CollectiveException(reason.getMessage(), reason);
    }

    private static int startProxy(int port) {
        // until this process ends
        return Unchecked.call(() -> Proxy.thatChanges(port, CHANGED).port());
    }
}
