package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ProcessMemory;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.GradientKeeper;
import io.djltp.testing.TestArrays;

import java.util.List;

/** Runs many forward and backward passes and prints the memory early and at the end. */
final class ManyPasses {

    private ManyPasses() {}

    /** Returns a cut: consecutive, of several ranges, or with a range on both ranks. */
    private static Cut cut(int kind, long length) {
        long part = length / 4;
        return switch (kind) {
            case 0 -> Cut.balanced(length, 2);
            case 1 ->
                    Cut.of(
                            length,
                            2,
                            rank ->
                                    List.of(
                                            new ShardRange(rank * part, part),
                                            new ShardRange((2 + rank) * part, part)));
            default -> Cut.of(length, 2, rank -> List.of(new ShardRange(rank * part, 3 * part)));
        };
    }

    public static void main(String[] args) throws Exception {
        int passes = Integer.parseInt(args[0]);
        Shape whole = new Shape(16, 64);
        Mapping.run(
                2,
                (mappings, manager, group) -> {
                    try (GradientKeeper keeper = new GradientKeeper()) {
                        NDArray weight = TestArrays.leaf(manager.ones(new Shape(64, 64)));
                        for (int i = 0; i < passes; i++) {
                            if (i == passes / 4) {
                                report(group, "early");
                            }
                            try (NDManager step = manager.newSubManager()) {
                                NDArray x = TestArrays.leaf(step.ones(whole));
                                NDArray y = mappings.copyToRegion(x, true).matMul(weight);
                                y = mappings.reduceFromRegion(y, true);
                                NDArray loss = keeper.scalar(y, step.create(1f), step.ones(whole));
                                Autograd.backward(loss, step.create(1f));
                                Autograd.zeroGradient(weight);
                                for (Mapping mapping : Mapping.values()) {
                                    Cut cut = cut(i % 3, whole.get(mapping.axis(whole)));
                                    pass(mapping, mappings, step, whole, cut, group.getRank());
                                }
                            }
                            keeper.clearTaken();
                        }
                        report(group, "late");
                    }
                });
    }

    private static void pass(
            Mapping mapping,
            RegionMappings mappings,
            NDManager step,
            Shape whole,
            Cut cut,
            int rank) {
        NDArray input = TestArrays.leaf(step.ones(mapping.inputShape(whole, cut, rank)));
        NDArray output = mapping.apply(mappings, input, cut);
        Autograd.backward(output, step.ones(output.getShape()));
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
