package io.djltp.internal.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.optimizer.LearningRates;
import io.djltp.internal.optimizer.OptimizerSettings;
import io.djltp.internal.optimizer.OptimizerState;
import io.djltp.internal.optimizer.StateKind;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.SharedPart;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.ParticipantStep;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.rank.StepParticipant;
import io.djltp.internal.update.ListedUpdates;
import io.djltp.internal.update.SquareSum;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.rank.ParallelConfig;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/** A rank's update of its shards and replicas. */
public final class RankUpdate implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(RankUpdate.class);

    private final ParallelParameters parameters;
    private final GradientGroups groups;
    private final List<OptimizerState> states = new ArrayList<>(); // of the ranks of this process
    private final List<GradientBuckets> replicas = new ArrayList<>(); // of these ranks
    private final List<GradientBuckets> buckets = new ArrayList<>(); // of these ranks
    private final GlobalNorm norm;
    private final boolean measured; // whether their norm is known before the update
    private final boolean limited; // whether gradients are limited by their norm
    private final boolean sharedOut; // whether ranks of a group each update a part
    private boolean checked; // whether they can, which rank 0 alone reads and writes
    private final float[] factors; // of the gradients of the ranks, in this step

    /**
     * Creates the update of a training, without state.
     *
     * @param parameters what the ranks hold
     * @param groups over which ranks gradients are summed
     * @param optimizer the settings of the optimizer
     * @param ranks the ranks
     * @param config the settings of the ranks
     */
    public RankUpdate(
            ParallelParameters parameters,
            GradientGroups groups,
            OptimizerSettings optimizer,
            RankPool ranks,
            ParallelConfig config) {
        limited = config.getGradientClipNorm() != 0;
        float limit = limited ? config.getGradientClipNorm() : Float.POSITIVE_INFINITY;
        measured = limited || config.getLossScaling() != null;
        sharedOut = config.isOptimizerSharded() && StateKind.areOfElements(optimizer);
        checked = !config.isOptimizerSharded();
        norm = new GlobalNorm(parameters, limit);
        factors = new float[ranks.size()];
        this.parameters = parameters;
        this.groups = groups;
        for (int i = 0; i < ranks.size(); i++) {
            RankWeights weights = new RankWeights(ranks.getContext(i));
            states.add(new OptimizerState(optimizer, weights));
            replicas.add(new GradientBuckets(parameters));
            buckets.add(new GradientBuckets(parameters));
        }
    }

    /**
     * Returns what the optimizer keeps of the parameters of a rank of this process.
     *
     * @param localIndex the place of the rank among those of this process
     * @return what the optimizer keeps of the parameters of a rank of this process
     */
    public OptimizerState getState(int localIndex) {
        return states.get(localIndex);
    }

    /**
     * Sums the gradients of data-parallel parameters, and updates some while others are summed.
     * Uses the gradients up.
     *
     * @param context the rank
     * @param updates what is done to each parameter that is trained, in the order of the block tree
     */
    public void run(ParallelContext context, Map<Parameter, LearningRates.Update> updates) {
        GradientBuckets sums = start(context, updates.keySet());
        factors[context.getLocalIndex()] = measured ? norm.factor(context, sums) : 1;
        finish(context, updates); // while the others are summed
    }

    private GradientBuckets start(ParallelContext context, Set<Parameter> trained) {
        Set<Parameter> summed = new LinkedHashSet<>(trained);
        summed.removeAll(context.getParticipants().getParameters());
        sumReplicas(context, summed);
        List<GradientBuckets.Member> gradients = new ArrayList<>();
        for (Parameter parameter : summed) {
            NDArray value = parameters.getStore(context).getHeld(parameter);
            Communicator group = groups.of(context, parameter);
            boolean part = sharers(context, parameter) != null;
            gradients.add(new GradientBuckets.Member(parameter, value, group, null, part));
        }
        if (context.getRank() == 0 && !checked) {
            checked = true;
            warnOfWhole(gradients);
        }
        GradientBuckets sums = buckets.get(context.getLocalIndex());
        sums.start(gradients);
        return sums;
    }

    private static void warnOfWhole(List<GradientBuckets.Member> gradients) {
        if (gradients.stream().noneMatch(GradientBuckets.Member::sharedOut)) {
            logger.warn(
                    "optShardOptimizer(true) has no effect: the optimizer keeps no state of"
                            + " elements, or no parameter is trained by several ranks alike: give"
                            + " the mesh 2 or more ranks along data, or use MIXED mode");
        }
    }

    /**
     * Makes the gradients of what several ranks hold of sharded parameters whole, before they are
     * summed over other axes. The order of the buckets follows from the parameters and from the
     * order of the groups, so that ranks which have two groups in common issue their operations in
     * the same order.
     */
    private void sumReplicas(ParallelContext context, Set<Parameter> trained) {
        List<GradientBuckets.Member> parts = new ArrayList<>();
        for (Parameter parameter : trained) {
            NDArray value = parameters.getStore(context).getHeld(parameter);
            for (SharedPart part : parameters.getReplicas().getParts(context, parameter)) {
                parts.add(new GradientBuckets.Member(parameter, value, part.group(), part, false));
            }
        }
        GradientBuckets sums = replicas.get(context.getLocalIndex());
        sums.start(parts);
        sums.putBack();
    }

    /**
     * Sums the gradients of a loss that was scaled, and takes the scale from them: the first half
     * of a step, after which all ranks know whether {@link #finish} or {@link #drop} is the other.
     *
     * @param context the rank
     * @param trained the parameters that are trained, in the order of the block tree
     * @param scale what the loss was multiplied with
     * @return whether all gradients of all ranks are finite
     */
    public boolean unscale(ParallelContext context, Set<Parameter> trained, float scale) {
        boolean finite = true;
        for (StepParticipant participant : context.getParticipants()) {
            finite &= participant.unscale(1 / scale);
        }
        GradientBuckets sums = start(context, trained);
        double total = norm.measure(context, sums, scale, finite);
        factors[context.getLocalIndex()] = norm.factor(total) / scale;
        return Double.isFinite(total);
    }

    /**
     * Leaves a step out: forgets its gradients, and changes nothing else.
     *
     * @param context the rank
     */
    public void drop(ParallelContext context) {
        context.getParticipants().forEach(StepParticipant::zeroGradient);
        buckets.get(context.getLocalIndex()).drop();
    }

    /**
     * Updates all parameters by gradients that were summed, or are still on their way.
     *
     * @param context the rank
     * @param updates what is done to each parameter that is trained, in the order of the block tree
     */
    public void finish(ParallelContext context, Map<Parameter, LearningRates.Update> updates) {
        float factor = factors[context.getLocalIndex()];
        ParticipantStep step = new StepOfRank(context, updates);
        context.getParticipants().forEach(participant -> participant.step(step));
        ListedUpdates listed = new ListedUpdates();
        buckets.get(context.getLocalIndex())
                .finish(
                        (member, gradient, share) -> {
                            if (factor != 1 && gradient != null) {
                                SquareSum.scale(gradient, factor);
                            }
                            WeightUpdate update =
                                    begin(context, member.parameter(), updates, share);
                            listed.add(
                                    Objects.requireNonNull(update),
                                    member.value(),
                                    gradient,
                                    share == null ? null : share.range());
                        },
                        listed::run);
    }

    /**
     * Returns the norm of all gradients of the last step, before they were limited by it.
     *
     * @return the norm; NaN before the first step, and where it is not computed
     */
    public double getGradientNorm() {
        return limited ? norm.getLast() : Double.NaN;
    }

    /**
     * Checks that the norm of all gradients can be known before the first parameter is updated.
     *
     * @param context a rank, between its steps
     * @param trained the parameters that are trained
     * @throws IllegalArgumentException if a block computes the gradient of one while it updates it
     */
    public void checkNorm(ParallelContext context, Set<Parameter> trained) {
        for (Parameter parameter : context.getParticipants().getParameters()) {
            if (limited && trained.contains(parameter)) {
                throw Errors.argument(
                        "optGradientClipNorm needs all gradients before the first parameter is"
                                + " updated, and parameter %s %s belongs to a block that computes"
                                + " its gradient a part at a time and updates it at once. Build a"
                                + " ClassificationHead with optFusedLoss(false); instead of an"
                                + " EmbeddingBag use DJL's embedding and a sum; or freeze the"
                                + " parameter",
                        parameters.nameOf(parameter), parameter.getShape());
            }
        }
    }

    /**
     * Begins a step for participants that update their parameters before it.
     *
     * @param context the rank
     * @param updates what is done to each parameter that is trained
     * @return the step
     * @throws IllegalArgumentException if gradients are limited by their norm, or the loss is
     *     scaled
     */
    public ParticipantStep ahead(
            ParallelContext context, Map<Parameter, LearningRates.Update> updates) {
        Errors.check(
                !measured,
                "optUpdateInLoss updates a weight before the other gradients are there, and"
                        + " optGradientClipNorm and optLossScaling need all of them: leave it or"
                        + " these out");
        return new StepOfRank(context, updates);
    }

    /** What participants get. */
    private final class StepOfRank implements ParticipantStep {

        private final ParallelContext context;
        private final Map<Parameter, LearningRates.Update> updates;

        StepOfRank(ParallelContext context, Map<Parameter, LearningRates.Update> updates) {
            this.context = context;
            this.updates = updates;
        }

        /** {@inheritDoc} */
        @Override
        public NDArray getValue(Parameter parameter) {
            return parameters.getStore(context).getHeld(parameter);
        }

        /** {@inheritDoc} */
        @Override
        public @Nullable WeightUpdate getUpdate(Parameter parameter) {
            return begin(context, parameter, updates, null);
        }

        /** {@inheritDoc} */
        @Override
        public @Nullable Communicator getGradientGroup(Parameter parameter) {
            return groups.of(context, parameter);
        }

        /** {@inheritDoc} */
        @Override
        public String nameOf(Parameter parameter) {
            return parameters.nameOf(parameter);
        }
    }

    /** Returns the update of this step with its state, or null if a parameter is not trained. */
    private @Nullable WeightUpdate begin(
            ParallelContext context,
            Parameter parameter,
            Map<Parameter, LearningRates.Update> updates,
            OptimizerState.@Nullable Share share) {
        LearningRates.Update step = updates.get(parameter);
        if (step == null) {
            return null;
        }
        String name = parameters.nameOf(parameter);
        OptimizerState state = states.get(context.getLocalIndex());
        WeightUpdate update = state.getUpdate(name, share);
        update.begin(step.learningRate(), step.number());
        return update;
    }

    /** Frees the state of the optimizer and the memory of summed gradients. */
    @Override
    public void close() {
        states.forEach(OptimizerState::close);
        replicas.forEach(GradientBuckets::close);
        buckets.forEach(GradientBuckets::close);
    }

    /**
     * Returns the group whose ranks each update a part of what the rank holds of a parameter, or
     * null if the rank updates all of it: what no other rank holds alike, what a block updates
     * itself, and shards that have parts in common with some ranks.
     */
    private @Nullable Communicator sharers(ParallelContext context, Parameter parameter) {
        return !sharedOut
                        || context.getParticipants().getParameters().contains(parameter)
                        || parameters.getReplicas().has(context, parameter)
                ? null
                : groups.of(context, parameter);
    }

    /** A rank's shards and replicas by the names of their parameters. */
    private final class RankWeights implements OptimizerState.Weights {

        private final ParallelContext context;

        RankWeights(ParallelContext context) {
            this.context = context;
        }

        /** {@inheritDoc} */
        @Override
        public @Nullable Communicator getSharers(String name) {
            Parameter parameter = parameters.byName(name);
            return parameter == null ? null : sharers(context, parameter);
        }

        /** {@inheritDoc} */
        @Override
        public @Nullable NDArray get(String name) {
            Parameter parameter = parameters.byName(name);
            return parameter == null ? null : parameters.getStore(context).getHeld(parameter);
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(String name, WeightUpdate update) {
            Parameter parameter = parameters.byName(name);
            ShardingStrategy strategy =
                    parameter == null ? null : parameters.getStrategy(parameter);
            if (parameter == null || strategy == null) {
                return;
            }
            Shape whole = parameter.getArray().getShape();
            Communicator group = context.getTensorGroup();
            Cut cut = strategy.cut(whole, group.getSize());
            if (strategy.axis(whole) != 0) {
                update.setRowsCut(group, whole, strategy.axis(whole), cut);
            } else if (!cut.isPartition()) {
                update.setRowGroups(stretches(cut, group.getRank()));
            }
        }

        /**
         * Returns the lengths of what the same ranks hold, in the order in which a rank holds it.
         */
        private long[] stretches(Cut cut, int rank) {
            return cut.getSegments().stream()
                    .filter(segment -> segment.getPlace(rank) >= 0)
                    .sorted(Comparator.comparingLong(segment -> segment.getPlace(rank)))
                    .mapToLong(segment -> segment.range().length())
                    .toArray();
        }
    }
}
