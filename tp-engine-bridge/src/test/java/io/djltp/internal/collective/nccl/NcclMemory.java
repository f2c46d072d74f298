package io.djltp.internal.collective.nccl;

import ai.djl.ndarray.types.DataType;

import io.djltp.collective.Communicator;
import io.djltp.collective.ProcessMemory;
import io.djltp.collective.RankThreads;

import java.nio.file.Path;
import java.util.List;

/** Runs many operations and prints the memory of the process and the events, early and late. */
final class NcclMemory {

    private NcclMemory() {}

    public static void main(String[] args) throws Exception {
        NcclDouble.load(Path.of(args[0]));
        int rounds = Integer.parseInt(args[1]);
        List<Communicator> group = NcclGroups.create(2, RankThreads.TIMEOUT);
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            for (int i = 0; i < rounds; i++) {
                                if (i == rounds / 4) {
                                    report(communicator, "early");
                                }
                                EveryOperation.run(communicator, DataType.FLOAT32, 300);
                            }
                            report(communicator, "late");
                        });
        System.out.println("operations=" + group.get(0).getCounts().total());
        group.forEach(Communicator::close);
        for (Throwable outcome : outcomes) {
            System.out.println(outcome == null ? "done" : "failed: " + outcome);
        }
    }

    private static void report(Communicator communicator, String when) throws Exception {
        communicator.barrier();
        if (communicator.getRank() == 0) {
            System.out.println("events " + when + "=" + NcclDouble.live().get(2));
            ProcessMemory.print(when);
        }
        communicator.barrier();
    }
}
