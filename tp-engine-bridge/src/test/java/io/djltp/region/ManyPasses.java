package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ProcessMemory;
import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.GradientKeeper;
import io.djltp.testing.TestArrays;

import java.util.List;

/** Runs many forward and backward passes and prints the memory early and at the end. */
final class ManyPasses {

    private static final Shape INPUT = new Shape(16, 64);

    /** Consecutive, of several ranges, and with a range on both ranks. */
    private static final List<Cut> COLUMNS = cuts(64);

    private static final List<Cut> ROWS = cuts(16);

    private ManyPasses() {}

    private static List<Cut> cuts(long length) {
        long part = length / 4;
        return List.of(
                Cut.balanced(length, 2),
                Cut.of(
                        length,
                        2,
                        rank ->
                                List.of(
                                        new ShardRange(rank * part, part),
                                        new ShardRange((2 + rank) * part, part))),
                Cut.of(length, 2, rank -> List.of(new ShardRange(rank * part, 3 * part))));
    }

    public static void main(String[] args) throws Exception {
        int passes = Integer.parseInt(args[0]);
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    try (RegionMappings mappings = new RegionMappings(communicator);
                            GradientKeeper keeper = new GradientKeeper()) {
                        NDArray weight = TestArrays.leaf(manager.ones(new Shape(64, 64)));
                        for (int i = 0; i < passes; i++) {
                            if (i == passes / 4) {
                                report(communicator, "early");
                            }
                            try (NDManager step = manager.newSubManager()) {
                                pass(mappings, keeper, weight, step, i % 3);
                            }
                            keeper.clearTaken();
                        }
                        report(communicator, "late");
                    }
                });
    }

    private static void pass(
            RegionMappings mappings,
            GradientKeeper keeper,
            NDArray weight,
            NDManager step,
            int kind) {
        NDArray input = TestArrays.leaf(step.ones(INPUT));
        NDArray array = mappings.copyToRegion(input, true).matMul(weight);
        array = mappings.reduceFromRegion(array, true);
        Cut columns = COLUMNS.get(kind);
        array = mappings.gatherFromRegion(mappings.scatterToRegion(array, columns), columns);
        Cut rows = ROWS.get(kind);
        array = mappings.scatterToSequenceRegion(array, rows);
        array = mappings.gatherFromSequenceRegion(array, rows, true);
        array = mappings.reduceScatterToSequenceRegion(array, rows);
        array = mappings.gatherFromSequenceRegion(array, rows, false);
        NDArray loss = keeper.scalar(array, step.create(1f), step.ones(INPUT));
        Autograd.backward(loss, step.create(1f));
        Autograd.zeroGradient(weight);
        Autograd.gradient(input).close();
    }

    private static void report(Communicator communicator, String when) throws Exception {
        communicator.barrier();
        if (communicator.getRank() == 0) {
            ProcessMemory.print(when);
        }
        communicator.barrier();
    }
}
