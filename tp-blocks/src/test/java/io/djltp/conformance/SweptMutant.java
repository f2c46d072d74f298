package io.djltp.conformance;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;

import io.djltp.internal.rank.ParallelContext;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.GraphBlock;

/** Column, activation, row, with an error on ranks. */
record SweptMutant(long outputs, Error error) implements SweptPart {

    private static final long HIDDEN = 8;

    /** What is wrong. */
    enum Error {
        NONE,
        /** The gradient of what comes before is one part in 10,000 too large. */
        GRADIENT_SCALE,
        /** The ranks' sum has the bias once more. */
        BIAS_TWICE,
        /** The summand of the last rank is missing. */
        MISSING_SUMMAND
    }

    @Override
    public Block create(boolean cut) {
        if (!cut) {
            return sequence(linear(HIDDEN), Activation.tanhBlock(), linear(outputs));
        }
        RowParallelLinear row = row(outputs);
        GraphBlock wrong =
                new GraphBlock(
                        new Shape(outputs),
                        (call, in) -> {
                            NDArray x = in.head();
                            if (error == Error.MISSING_SUMMAND && isLast(call.context())) {
                                x = x.mul(number(x, 0));
                            }
                            NDArray y = call.call("row", x);
                            if (error == Error.BIAS_TWICE) {
                                y = y.add(call.value("bias"));
                            } else if (error == Error.GRADIENT_SCALE) {
                                NDArray more = y.mul(number(y, 1e-4f));
                                y = y.add(more).sub(more.stopGradient());
                            }
                            return new NDList(y);
                        });
        wrong.add("row", row, HIDDEN);
        wrong.tie("bias", row.getDirectParameters().get("bias"));
        return sequence(column(HIDDEN), Activation.tanhBlock(), wrong);
    }

    private static boolean isLast(ParallelContext context) {
        return context.getTensorGroup().getRank() == context.getTensorGroup().getSize() - 1;
    }

    private static NDArray number(NDArray of, float value) {
        return of.getManager().create(value).toType(of.getDataType(), false);
    }
}
