package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.collective.nccl.NcclDouble;

import java.nio.file.Path;
import java.util.List;
import java.util.SplittableRandom;

/**
 * Runs every operation many times, and prints the memory of the process, and of the double of NCCL
 * its events, early and at the end: backend, folder of the double, ranks, rounds.
 */
final class ManyOperations {

    private ManyOperations() {}

    public static void main(String[] args) throws Exception {
        TestBackend backend = TestBackend.valueOf(args[0]);
        if (backend == TestBackend.NCCL) {
            NcclDouble.load(Path.of(args[1]));
        }
        int rounds = Integer.parseInt(args[3]);
        SplittableRandom random = new SplittableRandom(42);
        int[] lengths = random.ints(rounds, 0, 600).toArray();
        List<Communicator> group = backend.create(Integer.parseInt(args[2]), RankThreads.TIMEOUT);
        RankThreads.runAll(
                group,
                (communicator, manager) -> {
                    for (int i = 0; i < rounds; i++) {
                        if (i == rounds / 4) {
                            report(communicator, backend, "early");
                        }
                        DataType type = TestTensors.TYPES[i % TestTensors.TYPES.length];
                        EveryOperation.run(communicator, type, lengths[i]);
                    }
                    report(communicator, backend, "late");
                });
        System.out.println("operations=" + group.get(0).getCounts().total());
    }

    private static void report(Communicator communicator, TestBackend backend, String when)
            throws Exception {
        communicator.barrier();
        if (communicator.getRank() == 0) {
            int events = backend == TestBackend.NCCL ? NcclDouble.live().get(2).intValue() : 0;
            System.out.println("events " + when + "=" + events);
            ProcessMemory.print(when);
        }
        communicator.barrier();
    }
}
