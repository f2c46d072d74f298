package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.Loss;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastLoss;
import io.djltp.internal.head.ClassLabels;
import io.djltp.internal.head.ShardedCrossEntropy;
import io.djltp.internal.loss.FusedHead;
import io.djltp.internal.loss.ShardedLoss;
import io.djltp.internal.parameters.ShardedArray;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.torch.GradientKeeper;
import io.djltp.internal.torch.TensorView;

import org.jspecify.annotations.Nullable;

import java.util.Objects;

/** A loss of logits that are cut over the ranks by class, or of a fused head. */
@SuppressWarnings("try") // a scope is used by being open
abstract class ClassLoss extends Loss implements ShardedLoss, ForecastLoss {

    final LossOptions options;

    ClassLoss(String name, LossOptions options) {
        super(Objects.requireNonNull(name, "name"));
        this.options = Objects.requireNonNull(options, "options");
    }

    /** Computes the loss of a fused head and its gradient. */
    abstract NDArray ofHead(
            FusedHead head, NDArray features, NDArray labels, ParallelContext context);

    /** Computes the loss of a fused head that is not trained on. */
    abstract NDArray ofHead(FusedHead head, NDArray features, NDArray labels);

    /** Computes the loss of the rank's logits. */
    abstract ShardedCrossEntropy.Result ofLogits(
            NDArray logits,
            NDArray labels,
            Cut cut,
            @Nullable Communicator group,
            boolean withGradient);

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException if the logits are not known to be a slice, or a label is not
     *     a class: outside of them, no whole number, or so large that its type is not exact; or if
     *     this is not the loss of the trainer that has returned the predictions
     */
    @Override
    public NDArray evaluate(NDList labels, NDList predictions) {
        NDArray logits = predictions.singletonOrThrow();
        ParallelContext context = ParallelContext.current();
        checkOnRanks(logits);
        boolean known = TensorView.of(logits).requiresGradient();
        boolean backward = known && (context == null || context.getPass().isTraining());
        if (backward && context != null && options.reduction() == Reduction.NONE) {
            throw new IllegalArgumentException(
                    "The losses of rows are computed by ranks in evaluations only: train with"
                            + " Reduction.MEAN or Reduction.SUM, and let LossOptions weigh the"
                            + " classes, or ignore rows");
        }
        FusedHead head = FusedHead.of(context, logits);
        if (head != null && context != null) {
            context.getTensorGroup().setIssuer(getClass().getSimpleName());
            NDArray ids = DelegatedArray.unwrap(only(labels));
            NDArray features = DelegatedArray.unwrap(logits);
            if (!backward) {
                try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                    NDArray value = ofHead(head, features, ids);
                    return context.getPass().enterLoss(value, logits);
                }
            }
            NDArray value = ofHead(head, features, ids, context);
            return context.getPass().enterLoss(value, logits);
        }
        NDArray ids = DelegatedArray.unwrap(only(labels));
        return evaluate(ids, logits, context, backward);
    }

    private void checkOnRanks(NDArray logits) {
        if (ShardedArray.isStandIn(logits)) {
            throw Errors.argument(
                    "The predictions %s lie on the ranks of a ParallelTrainer, which compute the"
                            + " loss of its training configuration only, and not this object, %s:"
                            + " ask trainer.getLoss(), and let a SimpleCompositeLoss of the"
                            + " configuration put several together",
                    logits.getShape(), getName());
        }
    }

    static NDArray only(NDList labels) {
        Errors.check(
                labels.size() == 1,
                "The loss needs one array of labels, a class for each row, and gets %s. Of"
                        + " several, let an IndexLoss choose one",
                labels.size());
        return labels.head();
    }

    private NDArray evaluate(
            NDArray labels, NDArray logits, @Nullable ParallelContext context, boolean backward) {
        ClassCut classes = ClassCut.of(context, logits, this);
        NDArray own = context == null ? logits : context.getPass().takeLast(logits);
        ShardedCrossEntropy.Result result =
                ofLogits(own, labels, classes.cut(), classes.group(), backward);
        NDArray value = result.value();
        NDArray gradient = result.gradient();
        if (gradient != null) {
            GradientKeeper keeper =
                    context == null ? new GradientKeeper() : context.getGradientKeeper();
            try (NDArray plain = value;
                    gradient;
                    Autograd.GradMode mode = Autograd.gradMode(true)) {
                value = keeper.scalar(own, plain, gradient);
            }
        }
        return context == null ? value : context.getPass().enterLoss(value, logits);
    }

    /** {@inheritDoc} */
    @Override
    public void checkLabels(NDList labels, Shape predictions, long classes) {
        ClassLabels.check(only(labels), predictions, classes, options.ignoreIndex());
    }
}
