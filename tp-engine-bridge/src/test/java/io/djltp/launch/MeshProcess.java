package io.djltp.launch;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;

import io.djltp.collective.Communicator;
import io.djltp.collective.Leftovers;
import io.djltp.collective.MeshGroups;
import io.djltp.collective.RankThreads;
import io.djltp.internal.collective.nccl.NcclDouble;
import io.djltp.job.Job;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collections;
import java.util.List;

/**
 * A process with some ranks of a mesh, which compute on both axes until the last rank of all fails:
 * the backend, the sizes of the axes, and the folder of the double of NCCL. The environment says
 * which process it is.
 */
public final class MeshProcess {

    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    private final int data;
    private final int tensor;

    private MeshProcess(int data, int tensor) {
        this.data = data;
        this.tensor = tensor;
    }

    /**
     * Runs the process, and reports what each rank of it is told.
     *
     * @param args see above
     * @throws Exception if anything else goes wrong than what is to
     */
    public static void main(String[] args) throws Exception {
        Backend backend = Backend.of(args[0]);
        if (args.length > 3) {
            NcclDouble.load(Path.of(args[3]));
        }
        MeshProcess mesh = new MeshProcess(Integer.parseInt(args[1]), Integer.parseInt(args[2]));
        List<String> before = Leftovers.list();
        int first = mesh.run(backend);
        Leftovers.assertNoneSince(before);
        report(first, "left", "nothing");
    }

    private int run(Backend backend) throws InterruptedException {
        try (Job job = Launcher.join(System.getenv(), data * tensor, TIMEOUT)) {
            int last = job.getRanks() - 1;
            List<Device> devices = Collections.nCopies(job.getLocalRanks(), Device.cpu());
            List<Communicator> group = backend.connect(devices, job, TIMEOUT);
            Throwable[] outcomes =
                    RankThreads.outcomes(
                            group,
                            (world, manager) -> {
                                compute(world, manager, last, job);
                            });
            for (int i = 0; i < outcomes.length; i++) {
                report(job.getFirstRank() + i, "failure", outcomes[i].getMessage());
            }
            if (job.getFirstRank() + job.getLocalRanks() > last) {
                Thread.sleep(1000); // the others report first
            }
            group.forEach(Communicator::close);
            return job.getFirstRank();
        }
    }

    private void compute(Communicator world, NDManager manager, int last, Job job) {
        MeshGroups mesh = new MeshGroups(world, data, tensor);
        mesh.run(40);
        report(world.getRank(), "computed", "all");
        mesh.run(1); // all have reported
        if (world.getRank() == last) {
            IllegalStateException failure = new IllegalStateException("it has lost its data");
            job.fail(last, failure);
            throw failure;
        }
        while (true) {
            mesh.run(1);
        }
    }

    private static void report(int rank, String subject, String text) {
        String line = "REPORT " + rank + " " + subject + ": " + text + "\n";
        byte[] bytes = line.getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }
}
