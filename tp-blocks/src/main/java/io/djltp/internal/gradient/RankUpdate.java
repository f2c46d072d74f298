package io.djltp.internal.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.update.FlatGradients;
import io.djltp.internal.update.SquareSum;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.optimizer.LearningRates;
import io.djltp.optimizer.OptimizerSettings;
import io.djltp.optimizer.OptimizerState;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.SharedPart;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.ParticipantStep;
import io.djltp.rank.RankPool;
import io.djltp.rank.StepParticipant;
import io.djltp.sharding.ShardingStrategy;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A rank's update of its shards and replicas. */
public final class RankUpdate implements AutoCloseable {

    private final ParallelParameters parameters;
    private final GradientGroups groups;
    private final List<OptimizerState> states = new ArrayList<>(); // of the ranks of this process
    private final List<ReplicaSums> replicas = new ArrayList<>(); // of these ranks
    private final List<GradientBuckets> buckets = new ArrayList<>(); // of these ranks
    private final GlobalNorm norm; // or null: it is not needed
    private final boolean limited; // whether gradients are limited by their norm
    private final float[] factors; // of the gradients of the ranks, in this step

    /**
     * Creates the update of a training, without state.
     *
     * @param parameters what the ranks hold
     * @param groups over which ranks gradients are summed
     * @param optimizer the settings of the optimizer
     * @param ranks the ranks
     * @param clipNorm the largest norm of all gradients, or 0 for none
     * @param scaled whether the loss is scaled
     */
    public RankUpdate(
            ParallelParameters parameters,
            GradientGroups groups,
            OptimizerSettings optimizer,
            RankPool ranks,
            float clipNorm,
            boolean scaled) {
        limited = clipNorm != 0;
        float limit = limited ? clipNorm : Float.POSITIVE_INFINITY;
        norm = limited || scaled ? new GlobalNorm(parameters, limit) : null;
        factors = new float[ranks.size()];
        this.parameters = parameters;
        this.groups = groups;
        for (int i = 0; i < ranks.size(); i++) {
            RankWeights weights = new RankWeights(parameters, ranks.getContext(i));
            states.add(new OptimizerState(optimizer, weights));
            replicas.add(new ReplicaSums(parameters));
            buckets.add(new GradientBuckets(parameters, groups, BucketPlan.BYTES));
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
        factors[context.getLocalIndex()] = norm == null ? 1 : norm.factor(context, sums);
        finish(context, updates); // while the others are summed
    }

    private GradientBuckets start(ParallelContext context, Set<Parameter> trained) {
        Set<Parameter> summed = new LinkedHashSet<>(trained);
        summed.removeAll(context.getParticipants().getParameters());
        replicas.get(context.getLocalIndex()).run(context, summed);
        GradientBuckets sums = buckets.get(context.getLocalIndex());
        sums.start(context, summed);
        return sums;
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
        buckets.get(context.getLocalIndex()).finish((parameter, value, gradient) -> {});
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
        buckets.get(context.getLocalIndex())
                .finish(
                        (parameter, value, gradient) -> {
                            if (factor != 1 && gradient != null) {
                                SquareSum.scale(gradient, factor);
                            }
                            begin(context, parameter, updates).run(value, gradient);
                        });
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
                throw new IllegalArgumentException(
                        "optGradientClipNorm needs all gradients before the first parameter is"
                                + " updated, and parameter "
                                + parameters.nameOf(parameter)
                                + " "
                                + parameter.getShape()
                                + " belongs to a block that computes its gradient a part at a time"
                                + " and updates it at once. Build a ClassificationHead with"
                                + " optFusedLoss(false); in the place of an EmbeddingBag use DJL's"
                                + " embedding and a sum; or freeze the parameter");
            }
        }
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
        public WeightUpdate getUpdate(Parameter parameter) {
            return begin(context, parameter, updates);
        }

        /** {@inheritDoc} */
        @Override
        public Communicator getGradientGroup(Parameter parameter) {
            return groups.of(context, parameter);
        }

        /** {@inheritDoc} */
        @Override
        public String nameOf(Parameter parameter) {
            return parameters.nameOf(parameter);
        }
    }

    /** Returns the update of this step with its state, or null if a parameter is not trained. */
    private WeightUpdate begin(
            ParallelContext context,
            Parameter parameter,
            Map<Parameter, LearningRates.Update> updates) {
        LearningRates.Update step = updates.get(parameter);
        if (step == null) {
            return null;
        }
        String name = parameters.nameOf(parameter);
        WeightUpdate update = states.get(context.getLocalIndex()).getUpdate(name);
        update.begin(step.learningRate(), step.number());
        return update;
    }

    /** Frees the state of the optimizer and the memory of summed gradients. */
    @Override
    public void close() {
        states.forEach(OptimizerState::close);
        replicas.forEach(ReplicaSums::close);
        buckets.forEach(GradientBuckets::close);
    }

    /** A rank's shards and replicas by the names of their parameters. */
    private static final class RankWeights implements OptimizerState.Weights {

        private final ParallelParameters parameters;
        private final ParallelContext context;

        RankWeights(ParallelParameters parameters, ParallelContext context) {
            this.parameters = parameters;
            this.context = context;
        }

        /** {@inheritDoc} */
        @Override
        public NDArray get(String name) {
            Parameter parameter = parameters.byName(name);
            return parameter == null ? null : parameters.getStore(context).getHeld(parameter);
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(String name, WeightUpdate update) {
            Parameter parameter = parameters.byName(name);
            ShardingStrategy strategy = parameters.getStrategy(parameter);
            Shape whole = parameter.getArray().getShape();
            if (strategy == null) {
                return;
            }
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
        private static long[] stretches(Cut cut, int rank) {
            return cut.getSegments().stream()
                    .filter(segment -> segment.getPlace(rank) >= 0)
                    .sorted(Comparator.comparingLong(segment -> segment.getPlace(rank)))
                    .mapToLong(segment -> segment.range().length())
                    .toArray();
        }
    }

    /**
     * Makes the gradients of what several ranks hold of parameters that are cut whole: each is
     * summed over these ranks, many in one operation, as {@link BucketPlan} says, before those of
     * whole parameters are summed over other axes.
     *
     * <p>The order of the buckets follows from the parameters and from the order of the groups, so
     * that ranks which have two groups in common issue their operations in the same order.
     */
    private static final class ReplicaSums implements AutoCloseable {

        private final ParallelParameters parameters;
        private List<Member> members = List.of(); // all, in the order of the tree
        private final List<Bucket> buckets = new ArrayList<>(); // in the order of issue

        /**
         * Creates the sums of a rank.
         *
         * @param parameters the parameters
         */
        ReplicaSums(ParallelParameters parameters) {
            this.parameters = parameters;
        }

        /**
         * Sums the gradients, in their places.
         *
         * @param context the rank
         * @param trained the parameters that a step is about to update, in the order of the block
         *     tree
         */
        void run(ParallelContext context, Collection<Parameter> trained) {
            List<Member> now = new ArrayList<>();
            for (Parameter parameter : trained) {
                for (SharedPart part : parameters.getReplicas().getParts(context, parameter)) {
                    NDArray value = parameters.getStore(context).getHeld(parameter);
                    now.add(new Member(parameter, value, part));
                }
            }
            if (!BucketPlan.isFor(members, now, Member::isSame)) {
                close();
                plan(now);
            }
            buckets.forEach(Bucket::start);
            buckets.forEach(Bucket::finish);
        }

        private void plan(List<Member> all) {
            members = all;
            List<BucketPlan.Gradient> gradients = all.stream().map(Member::gradient).toList();
            for (List<Integer> numbers : BucketPlan.fill(gradients, BucketPlan.BYTES)) {
                List<Member> own = numbers.stream().map(all::get).toList();
                List<String> names =
                        own.stream()
                                .map(member -> parameters.nameOf(member.parameter()))
                                .distinct()
                                .toList();
                buckets.add(new Bucket(own, BucketPlan.describe(names)));
            }
        }

        /** Frees the memory of the buckets. */
        @Override
        public void close() {
            buckets.forEach(Bucket::close);
            buckets.clear();
            members = List.of();
        }

        /**
         * A part of a parameter.
         *
         * @param parameter the parameter
         * @param value the rank's shard
         * @param part what of it other ranks have too
         */
        private record Member(Parameter parameter, NDArray value, SharedPart part) {

            /** Returns whether nothing has changed. (Arrays are equal if their elements are.) */
            boolean isSame(Member other) {
                return parameter == other.parameter
                        && value == other.value
                        && part.equals(other.part);
            }

            BucketPlan.Gradient gradient() {
                long length = value.getShape().get(part.axis());
                long elements = value.size() / length * part.place().length();
                return new BucketPlan.Gradient(
                        part.group(),
                        value.getDataType(),
                        value.getDevice(),
                        elements * value.getDataType().getNumOfBytes());
            }

            private boolean isContiguous() {
                return part.axis() == 0
                        || part.place().length() == value.getShape().get(part.axis());
            }

            /** Returns the part of the gradient, of zeros where the rank has not used it. */
            private NDArray ofGradient() {
                try (NDArray gradient = Autograd.gradientOrZeros(value)) {
                    return part.of(gradient);
                }
            }
        }

        /**
         * Parts of gradients that a rank has in common with some others, which are summed over
         * these by one all-reduce, and put back where they were. A part that is alone and has no
         * gaps in memory is summed where it is.
         */
        @SuppressWarnings("try") // a scope is used by being open
        private static final class Bucket implements AutoCloseable {

            private final List<Member> members;
            private final String issuer;
            private final BucketSum sum;

            /**
             * Creates a bucket.
             *
             * @param members the parts, of one type, on one device and of one group
             * @param issuer what errors call the gradients
             */
            Bucket(List<Member> members, String issuer) {
                this.members = members;
                this.issuer = issuer;
                boolean alone = members.size() == 1 && members.get(0).isContiguous();
                sum = new BucketSum(alone ? null : flat(members));
            }

            private static FlatGradients flat(List<Member> members) {
                List<NDArray> parts = new ArrayList<>();
                try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                    members.forEach(member -> parts.add(member.part.of(member.value)));
                    return new FlatGradients(parts);
                } finally {
                    parts.forEach(NDArray::close);
                }
            }

            /** Begins to sum. */
            void start() {
                sum.releaseAlone(); // of a step that has failed
                Communicator group = members.get(0).part.group();
                try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                    if (sum.flat() == null) {
                        sum.start(members.get(0).ofGradient(), group, issuer);
                        return;
                    }
                    for (int i = 0; i < members.size(); i++) {
                        try (NDArray part = members.get(i).ofGradient()) {
                            sum.flat().set(i, part);
                        }
                    }
                }
                sum.start(group, issuer);
            }

            /** Waits for the sums, and puts them into the gradients. */
            void finish() {
                sum.await();
                sum.releaseAlone();
                if (sum.flat() != null) {
                    try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                        for (int i = 0; i < members.size(); i++) {
                            try (NDArray part = members.get(i).ofGradient()) {
                                sum.flat().copyTo(i, part);
                            }
                        }
                    }
                }
            }

            /** Frees the memory that is kept. */
            @Override
            public void close() {
                sum.close();
            }
        }
    }
}
