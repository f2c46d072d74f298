package io.djltp.conformance;

import ai.djl.nn.Block;

import io.djltp.testing.Blocks;

import java.util.List;

/** Branches of one input: their outputs beside each other, or added to the input. */
record SweptJoin(long outputs, boolean residual, List<SweptPart> branches) implements SweptPart {

    static SweptJoin residual(SweptPart part) {
        return new SweptJoin(part.outputs(), true, List.of(part));
    }

    static SweptJoin concatenated(List<SweptPart> parts) {
        return new SweptJoin(
                parts.stream().mapToLong(SweptPart::outputs).sum(), false, List.copyOf(parts));
    }

    @Override
    public Block create(boolean cut) {
        Block[] blocks = branches.stream().map(branch -> branch.create(cut)).toArray(Block[]::new);
        return residual
                ? Blocks.sum(ai.djl.nn.Blocks.identityBlock(), blocks[0])
                : Blocks.parallel(blocks);
    }
}
