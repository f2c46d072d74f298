package io.djltp.internal.update;

import ai.djl.training.optimizer.Adam;
import ai.djl.training.optimizer.AdamW;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.Tracker;

import java.util.List;

/** The updates of DJL's optimizers in float64, of some rows. */
public final class ReferenceUpdate {

    private static final float MOMENTUM = 0.9f;
    private static final float BETA1 = 0.9f;
    private static final float BETA2 = 0.999f;
    private static final float EPSILON = 1e-4f;

    /** An optimizer. */
    public enum Kind {
        SGD,
        MOMENTUM,
        ADAM,
        ADAMW,
        ROWWISE_ADAGRAD;

        /** Those that DJL has, too. */
        static final List<Kind> OF_DJL = List.of(SGD, MOMENTUM, ADAM, ADAMW);

        public WeightUpdate update(WeightUpdate.Settings settings) {
            return switch (this) {
                case SGD -> WeightUpdate.sgd(settings, 0);
                case MOMENTUM -> WeightUpdate.sgd(settings, ReferenceUpdate.MOMENTUM);
                case ADAM, ADAMW ->
                        WeightUpdate.adam(settings, BETA1, BETA2, EPSILON, this == ADAMW);
                case ROWWISE_ADAGRAD -> WeightUpdate.rowwiseAdagrad(settings, EPSILON);
            };
        }
    }

    /** Returns DJL's optimizer. */
    static Optimizer djl(Kind kind, WeightUpdate.Settings settings, Tracker rate) {
        return switch (kind) {
            case SGD, MOMENTUM -> {
                Sgd.Builder builder = with(Optimizer.sgd(), settings);
                builder.optMomentum(kind == Kind.SGD ? 0 : MOMENTUM);
                yield builder.setLearningRateTracker(rate).build();
            }
            case ADAM -> {
                Adam.Builder builder = with(Optimizer.adam(), settings);
                builder.optBeta1(BETA1).optBeta2(BETA2).optEpsilon(EPSILON);
                yield builder.optLearningRateTracker(rate).build();
            }
            case ADAMW -> {
                AdamW.Builder builder = with(Optimizer.adamW(), settings);
                builder.optBeta1(BETA1).optBeta2(BETA2).optEpsilon(EPSILON);
                yield builder.optLearningRateTracker(rate).build();
            }
            default -> throw new IllegalArgumentException("DJL has no " + kind);
        };
    }

    private static <T extends Optimizer.OptimizerBuilder<T>> T with(
            T builder, WeightUpdate.Settings settings) {
        builder.setRescaleGrad(settings.rescale());
        builder.optWeightDecays(settings.weightDecay());
        builder.optClipGrad(settings.clip());
        return builder;
    }

    private final Kind kind;
    private final WeightUpdate.Settings settings;
    private final int features;
    private final double[] first; // state
    private final double[] second;

    public ReferenceUpdate(Kind kind, WeightUpdate.Settings settings, int classes, int features) {
        this.kind = kind;
        this.settings = settings;
        this.features = features;
        first = new double[classes * features];
        second = new double[classes * features];
    }

    public void apply(double[] weight, double[] gradient, int[] rows, double rate, int step) {
        for (int row : rows) {
            double squares = 0;
            for (int i = row * features; i < (row + 1) * features; i++) {
                gradient[i] *= settings.rescale();
                if (settings.clip() >= 0) {
                    gradient[i] = Math.min(gradient[i], settings.clip());
                }
                if (kind != Kind.ADAMW) {
                    gradient[i] += settings.weightDecay() * weight[i];
                }
                squares += gradient[i] * gradient[i] / features;
            }
            for (int i = row * features; i < (row + 1) * features; i++) {
                weight[i] -= rate * step(weight, gradient, i, rate, step, squares);
            }
        }
    }

    private double step(
            double[] weight, double[] gradient, int i, double rate, int step, double squares) {
        switch (kind) {
            case SGD:
                return gradient[i];
            case MOMENTUM:
                first[i] = MOMENTUM * first[i] + gradient[i];
                return first[i];
            case ROWWISE_ADAGRAD:
                first[i] += squares;
                return gradient[i] / (Math.sqrt(first[i]) + EPSILON);
            default:
                first[i] = BETA1 * first[i] + (1 - BETA1) * gradient[i];
                second[i] = BETA2 * second[i] + (1 - BETA2) * gradient[i] * gradient[i];
                double correction =
                        Math.sqrt(1 - Math.pow(BETA2, step)) / (1 - Math.pow(BETA1, step));
                double decay = kind == Kind.ADAMW ? settings.weightDecay() * weight[i] : 0;
                // DJL decays first, and then moves
                return decay + correction * first[i] / (Math.sqrt(second[i]) + EPSILON);
        }
    }
}
