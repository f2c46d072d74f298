package io.djltp.examples.verify;

import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;

/** The forms of parallel layers that are verified, each beside its unsharded form. */
enum ParallelForm {
    /** Output features cut, output gathered. */
    COLUMN("column-parallel"),
    /** Input features cut, output reduced. */
    ROW("row-parallel"),
    /** Hidden features cut: nothing is communicated between the two layers. */
    COLUMN_ACTIVATION_ROW("column, activation, row");

    /** Sizes that are not divisible by 2, 3 or 4 ranks. */
    static final int FEATURES = 33;

    static final int HIDDEN = 129;
    static final int UNITS = 65;
    static final int SMALLEST_CUT = FEATURES;

    final String title;

    ParallelForm(String title) {
        this.title = title;
    }

    SequentialBlock parallel() {
        switch (this) {
            case COLUMN:
                return new SequentialBlock()
                        .add(
                                ColumnParallelLinear.builder()
                                        .setUnits(UNITS)
                                        .optGatherOutput(true)
                                        .build());
            case ROW:
                return new SequentialBlock()
                        .add(
                                RowParallelLinear.builder()
                                        .setUnits(UNITS)
                                        .optInputIsParallel(false)
                                        .build());
            default:
                return new SequentialBlock()
                        .add(ColumnParallelLinear.builder().setUnits(HIDDEN).build())
                        .add(Activation::gelu)
                        .add(RowParallelLinear.builder().setUnits(UNITS).build());
        }
    }

    SequentialBlock serial() {
        if (this != COLUMN_ACTIVATION_ROW) {
            return new SequentialBlock().add(Linear.builder().setUnits(UNITS).build());
        }
        return new SequentialBlock()
                .add(Linear.builder().setUnits(HIDDEN).build())
                .add(Activation::gelu)
                .add(Linear.builder().setUnits(UNITS).build());
    }
}
