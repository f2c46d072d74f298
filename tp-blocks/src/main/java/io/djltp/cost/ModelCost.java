package io.djltp.cost;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Pair;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastLoss;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.gradient.BucketPlan;
import io.djltp.internal.gradient.PartialAxes;
import io.djltp.internal.layout.Region;
import io.djltp.internal.layout.Region.Features;
import io.djltp.internal.layout.Region.Rows;
import io.djltp.internal.loss.ShardedLoss;
import io.djltp.internal.optimizer.OptimizerSettings;
import io.djltp.internal.optimizer.StateKind;
import io.djltp.internal.parameters.BlockWalk;
import io.djltp.internal.parameters.ShapesOnly;
import io.djltp.internal.update.FlatGradients;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.rank.DeviceMesh;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;

/**
 * What a training of a model costs on a mesh, before anything of it is allocated: what each rank
 * holds of each parameter, and what it communicates in a step.
 *
 * <pre>{@code
 * ModelCost cost =
 *         ModelCost.builder()
 *                 .setBlock(network)
 *                 .setMesh(DeviceMesh.parse("2x4"))
 *                 .setInputs(new Shape(64, 512))
 *                 .setLoss(new VocabParallelCrossEntropyLoss())
 *                 .setOptimizer(Optimizer.adam().build())
 *                 .build();
 * long bytes = cost.getRank(0).getTotal();
 * TrafficTable step = cost.getTraffic(0);
 * }</pre>
 *
 * <p>The bytes of weights, gradients and optimizer state are those that a {@link
 * io.djltp.training.ParallelTrainer} holds, and the traffic is that of a step after the first, as a
 * {@link io.djltp.internal.rank.CommunicationCounter} counts it: forward and backward pass on a
 * batch, and the update; no evaluators, no checks of replicas. Activations and the working memory
 * of layers are not counted. The children of blocks that are not DJL's and not of this library are
 * taken to be used once, in the order in which they were added.
 */
public final class ModelCost {

    private final Builder model;
    private final List<StateKind> stateKinds;
    private final Map<Block, String> blockNames;
    private final Map<Parameter, String> parameterNames = new IdentityHashMap<>();
    private final Map<Parameter, ShardingStrategy> strategies = new IdentityHashMap<>();
    private final Map<Parameter, ParameterCost> parameters = new LinkedHashMap<>();
    private final List<TrafficTable> tables = new ArrayList<>(); // by rank
    private final List<Map<Parameter, Long>> shares = new ArrayList<>(); // elements, by rank
    private final List<LayerCost> layers = new ArrayList<>();
    private final int tensorSize;

    /** Forecasts a step of each rank, while the network has shapes. */
    private ModelCost(Builder model) {
        this.model = model;
        stateKinds = model.training ? StateKind.of(model.optimizer()) : List.of();
        blockNames = BlockWalk.namesOf(model.block());
        tensorSize =
                model.mesh().isCut(DeviceMesh.TENSOR) ? model.mesh().getSize(DeviceMesh.TENSOR) : 1;
        for (Pair<String, Parameter> named : model.block().getParameters()) {
            // of one that blocks share the last counts, as in the training
            parameterNames.put(named.getValue(), named.getKey());
        }
        findStrategies(model.block());
        Shape output = model.block().getOutputShapes(model.row())[0];
        PassForecast first = forward(0, output);
        for (Parameter parameter : model.block().getParameters().values()) {
            parameters.computeIfAbsent(parameter, key -> cost(key, first));
        }
        for (int rank = 0; rank < model.mesh().getRanks(); rank++) {
            PassForecast pass = forward(rank, output);
            shares.add(model.training ? new GradientSums(pass, rank).forecast() : Map.of());
            tables.add(pass.getTable());
        }
        addLayers(model.block(), first);
    }

    /**
     * Returns the layers with parameters, in the order of the block tree.
     *
     * @return the layers
     */
    public List<LayerCost> getLayers() {
        return layers;
    }

    /**
     * Returns the parameters, in the order of the block tree.
     *
     * @return the parameters
     */
    public List<ParameterCost> getParameters() {
        return List.copyOf(parameters.values());
    }

    /**
     * Returns how the ranks are arranged.
     *
     * @return the mesh
     */
    public DeviceMesh getMesh() {
        return model.mesh();
    }

    /**
     * Returns the place of a rank among those over which layers are cut.
     *
     * @param rank the rank
     * @return the place, from 0
     */
    public int getTensorRank(int rank) {
        return tensorSize == 1 ? 0 : model.mesh().getCoordinate(rank, DeviceMesh.TENSOR);
    }

    /**
     * Returns what a parameter takes on a rank.
     *
     * @param parameter the parameter
     * @param rank the rank
     * @return the bytes
     */
    public RankCost getRank(ParameterCost parameter, int rank) {
        Shape own = parameter.getShape(getTensorRank(rank));
        long bytes = own.size() * model.dataType.getNumOfBytes();
        boolean trained = model.training && parameter.parameter().requiresGradient();
        Long share = shares.get(rank).get(parameter.parameter());
        Shape kept = share == null ? own : new Shape(share);
        return new RankCost(
                bytes,
                parameter.hasGradient() ? bytes : 0,
                trained ? stateKinds.stream().mapToLong(kind -> kind.bytes(kept)).sum() : 0);
    }

    /**
     * Returns what all parameters take on a rank.
     *
     * @param rank the rank
     * @return the bytes
     */
    public RankCost getRank(int rank) {
        return getParameters().stream()
                .map(parameter -> getRank(parameter, rank))
                .reduce(new RankCost(0, 0, 0), RankCost::plus);
    }

    /**
     * Returns what a rank communicates in a step.
     *
     * @param rank the rank
     * @return the operations and bytes by block, or gradient, and direction
     */
    public TrafficTable getTraffic(int rank) {
        return tables.get(rank);
    }

    private void findStrategies(Block block) {
        if (block.getClass().getName().startsWith("io.djltp.plan.")) {
            throw Errors.argument(
                    "ModelCost cannot forecast the block %s (%s): train one step, and read"
                            + " trainer.getCollectiveCounts()",
                    blockNames.get(block), block.getClass().getSimpleName());
        }
        if (block instanceof ShardedBlock sharded && tensorSize > 1) {
            for (Parameter parameter : block.getDirectParameters().values()) {
                ShardingStrategy strategy = sharded.getShardingStrategy(parameter);
                if (!strategy.isReplicated()) {
                    strategies.put(parameter, strategy);
                    String name = nameOf(parameter);
                    strategy.checkSplit(name, parameter.getShape(), tensorSize);
                }
            }
        }
        block.getChildren().values().forEach(this::findStrategies);
    }

    private String nameOf(Parameter parameter) {
        return Objects.requireNonNull(parameterNames.get(parameter), "a parameter of the network");
    }

    private ParameterCost cost(Parameter parameter, PassForecast pass) {
        ShardingStrategy strategy = strategies.get(parameter);
        Shape shape = parameter.getShape();
        Cut cut = strategy == null ? null : strategy.cut(shape, tensorSize);
        boolean trained = model.training && parameter.requiresGradient();
        boolean hasGradient = trained && !pass.isOwn(parameter);
        String name = nameOf(parameter);
        return new ParameterCost(parameter, name, shape, strategy, cut, hasGradient);
    }

    private void addLayers(Block block, PassForecast pass) {
        if (!block.getDirectParameters().isEmpty()) {
            Shape[] inputs = block.getInputShapes();
            layers.add(
                    new LayerCost(
                            Objects.requireNonNull(blockNames.get(block)),
                            block.getClass().getSimpleName(),
                            inputs == null ? new Shape() : pass.ofBatch(inputs[0]),
                            equationOf(block),
                            block.getDirectParameters().values().stream()
                                    .map(parameters::get)
                                    .toList()));
        }
        block.getChildren().values().forEach(child -> addLayers(child, pass));
    }

    private PassForecast forward(int rank, Shape output) {
        PassForecast.Model known =
                new PassForecast.Model(
                        model.dataType,
                        model.idType,
                        model.training,
                        model.training && model.optimizer().isRowSparse(),
                        blockNames,
                        parameterNames);
        long rows = model.inputs[0].get(0);
        PassForecast pass = new PassForecast(model.mesh(), rank, rows, known);
        Rows lie = pass.getDataSize() > 1 ? Rows.CUT : Rows.WHOLE;
        Region start = new Region(lie, Features.REPLICATED);
        ForecastArray[] inputs =
                Stream.of(model.inputs)
                        .map(shape -> new ForecastArray(shape, start, null, false))
                        .toArray(ForecastArray[]::new);
        ForecastArray whole = pass.visit(model.block(), inputs).withShape(pass.ofBatch(output));
        checkOutput(whole);
        if (model.training) {
            addLoss(pass, whole);
        }
        return pass;
    }

    private void checkOutput(ForecastArray whole) {
        Errors.check(
                !whole.region().isTokensCut(),
                "The output of the network has a rank's tokens only: end the sequence-parallel"
                        + " region with a SequenceGather, or with a ColumnParallelLinear with"
                        + " optSequenceParallel(true)");
        Errors.check(
                model.training || !whole.region().isShard(),
                "The output of the network is a slice of the features on each rank, which a"
                        + " ParallelPredictor cannot return: build the last layer with"
                        + " optGatherOutput(true), or forecast a training step");
    }

    /** The loss of the rank's rows, and the mean over the ranks; or that of all rows, gathered. */
    private void addLoss(PassForecast pass, ForecastArray predictions) {
        Loss loss = model.loss();
        if (!(loss instanceof ForecastLoss)) {
            ForecastLoss.checkWhole(loss, predictions);
        }
        boolean ofParts =
                ShardedLoss.isMean(loss, predictions.shape()) && predictions.region().isRowsCut();
        ForecastArray rows = ofParts ? predictions : pass.gatherRows(predictions);
        if (loss instanceof ForecastLoss forecast) {
            forecast.forecast(pass, rows);
        }
        if (ofParts) {
            pass.add(
                    loss.getClass().getSimpleName(),
                    Direction.FORWARD,
                    Collective.ALL_REDUCE,
                    pass.getDataSize(),
                    2 * Float.BYTES);
        }
    }

    /** Returns what a rank computes: what has an index r is the rank's part. */
    private static String equationOf(Block block) {
        String bias = block.getDirectParameters().get("bias") == null ? "" : " + b";
        if (block instanceof RowParallelLinear) {
            return "y = Σ x[r] W[r]ᵀ" + bias;
        }
        if (block instanceof ColumnParallelLinear || block instanceof ClassificationHead) {
            return "y[r] = x W[r]ᵀ" + (bias.isEmpty() ? bias : " + b[r]");
        }
        if (block instanceof VocabParallelEmbedding) {
            return "y = Σ W[r][id], zeros where rank r does not have the row";
        }
        if (block instanceof EmbeddingBag) {
            return "y = Σ table[id], the sum over the row numbers of a bag";
        }
        return block instanceof MixtureOfExperts
                ? "y = Σ weight[e] expert[e](x), the sum over the chosen experts"
                : "";
    }

    /**
     * Creates a builder to build a {@code ModelCost}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ModelCost}. */
    public static final class Builder {

        private static final String NEEDED = "You must set block, mesh and inputs";
        private static final String NEEDED_IN_TRAINING =
                "You must set loss and optimizer, or optTraining(false)";

        private @Nullable Block block;
        private @Nullable DeviceMesh mesh;
        private Shape[] inputs = {};
        private @Nullable Loss loss;
        private @Nullable OptimizerSettings optimizer;
        private DataType dataType = DataType.FLOAT32;
        private DataType idType = DataType.INT64;
        private boolean training = true;
        private boolean shardOptimizer;
        private Device device = Device.cpu();

        private Builder() {}

        /**
         * Sets the network. What it has no values of stays uninitialized.
         *
         * @param block the network
         * @return this builder
         */
        public Builder setBlock(Block block) {
            this.block = block;
            return this;
        }

        /**
         * Sets the ranks.
         *
         * @param mesh the mesh
         * @return this builder
         */
        public Builder setMesh(DeviceMesh mesh) {
            this.mesh = mesh;
            return this;
        }

        /**
         * Sets the shapes of the inputs of the whole batch, whose axis 0 are the rows.
         *
         * @param inputs the shapes
         * @return this builder
         */
        public Builder setInputs(Shape... inputs) {
            this.inputs = inputs.clone();
            return this;
        }

        /**
         * Sets the loss.
         *
         * @param loss the loss
         * @return this builder
         */
        public Builder setLoss(Loss loss) {
            this.loss = loss;
            return this;
        }

        /**
         * Sets the optimizer.
         *
         * @param optimizer the optimizer
         * @return this builder
         */
        public Builder setOptimizer(Optimizer optimizer) {
            this.optimizer = OptimizerSettings.of(optimizer);
            return this;
        }

        /**
         * Sets where the ranks compute, of which it depends how many gradients travel together.
         * Default: the CPU.
         *
         * @param device one of the devices
         * @return this builder
         */
        public Builder optDevice(Device device) {
            this.device = device;
            return this;
        }

        /**
         * Sets whether the network is trained. If not, there is a forward pass only, as that of a
         * {@link io.djltp.training.ParallelPredictor}: no gradient, no state, and neither loss nor
         * optimizer have to be set. Default: true.
         *
         * @param training whether it is trained
         * @return this builder
         */
        public Builder optTraining(boolean training) {
            this.training = training;
            return this;
        }

        /**
         * Sets whether ranks share out the state of the optimizer, as by {@link
         * io.djltp.rank.ParallelConfig.Builder#optShardOptimizer}. Default: false.
         *
         * @param sharded whether they do
         * @return this builder
         */
        public Builder optShardOptimizer(boolean sharded) {
            shardOptimizer = sharded;
            return this;
        }

        /**
         * Sets the type of ids that are looked up in an embedding: in MIXED mode ranks gather them.
         * Default: int64.
         *
         * @param type the type
         * @return this builder
         */
        public Builder optIdType(DataType type) {
            idType = type;
            return this;
        }

        /**
         * Computes the costs.
         *
         * @return the costs
         * @throws IllegalArgumentException if something is missing, a parameter cannot be cut over
         *     the ranks, or the batch has fewer rows than there are ranks to share them
         */
        public ModelCost build() {
            Block network = block();
            DeviceMesh cut = mesh();
            Errors.check(inputs.length > 0, NEEDED);
            if (training) {
                loss();
                optimizer();
            }
            int sharing = cut.isCut(DeviceMesh.DATA) ? cut.getSize(DeviceMesh.DATA) : 1;
            Errors.check(
                    inputs[0].dimension() > 0 && inputs[0].get(0) >= sharing,
                    "A batch of %s cannot be shared by %s ranks: give it %2$s rows or more",
                    inputs[0],
                    sharing);
            ModelCost[] cost = new ModelCost[1];
            ShapesOnly.read(network, dataType, () -> cost[0] = new ModelCost(this), row());
            return cost[0];
        }

        private Block block() {
            return Errors.given(block, NEEDED);
        }

        private DeviceMesh mesh() {
            return Errors.given(mesh, NEEDED);
        }

        private Loss loss() {
            return Errors.given(loss, NEEDED_IN_TRAINING);
        }

        private OptimizerSettings optimizer() {
            return Errors.given(optimizer, NEEDED_IN_TRAINING);
        }

        /** Returns the inputs of a batch of one row. */
        private Shape[] row() {
            Shape[] row = new Shape[inputs.length];
            for (int i = 0; i < row.length; i++) {
                boolean rows = inputs[i].dimension() > 0 && inputs[i].get(0) == inputs[0].get(0);
                row[i] = rows ? new Shape(1).addAll(inputs[i].slice(1)) : inputs[i];
            }
            return row;
        }
    }

    /**
     * A layer of the network: a block with parameters of its own.
     *
     * @param name its name in the network, by which {@link io.djltp.collective.TrafficTable} knows
     *     it
     * @param type its class
     * @param input the shape of its first input over all ranks
     * @param equation what a rank computes, or an empty text if the layer says nothing of ranks
     * @param parameters its own parameters
     */
    public record LayerCost(
            String name,
            String type,
            Shape input,
            String equation,
            List<ParameterCost> parameters) {}

    /**
     * A parameter as the ranks hold it.
     *
     * @param parameter the parameter
     * @param name its name in the network
     * @param shape its shape over all ranks
     * @param strategy how it is cut, or {@code null} if every rank has the whole
     * @param cut which ranges of an axis each rank of the tensor-parallel group has, or {@code
     *     null}
     * @param hasGradient whether a rank keeps a gradient of it: it is trained, and not updated by
     *     its block itself
     */
    public record ParameterCost(
            Parameter parameter,
            String name,
            Shape shape,
            @Nullable ShardingStrategy strategy,
            @Nullable Cut cut,
            boolean hasGradient) {

        /**
         * Returns whether it is cut.
         *
         * @return whether ranks have parts of it
         */
        public boolean isCut() {
            return cut != null;
        }

        /**
         * Returns the axis that is cut.
         *
         * @return the axis, or -1
         */
        public int getAxis() {
            return strategy == null ? -1 : strategy.axis(shape);
        }

        /**
         * Returns the shape of what a rank holds.
         *
         * @param tensorRank the rank's place in the tensor-parallel group
         * @return the shape of its shard or replica
         */
        public Shape getShape(int tensorRank) {
            return strategy == null || cut == null
                    ? shape
                    : strategy.shardShape(shape, tensorRank, cut.getRanks());
        }
    }

    /**
     * What the parameters take on one rank, in bytes.
     *
     * @param weights its shards and replicas
     * @param gradients their gradients, between a backward pass and the step
     * @param state what the optimizer keeps of them after the first step
     */
    public record RankCost(long weights, long gradients, long state) {

        /**
         * Returns the sum.
         *
         * @return the bytes
         */
        public long getTotal() {
            return weights + gradients + state;
        }

        /**
         * Returns the sum of two.
         *
         * @param other more on the same rank
         * @return the sum
         */
        public RankCost plus(RankCost other) {
            return new RankCost(
                    weights + other.weights, gradients + other.gradients, state + other.state);
        }
    }

    /** What a step communicates of the gradients of parameters, as the trainer's step does. */
    private final class GradientSums {

        /** What one rank has not used may have been used with the rows of another. */
        private static final Region UNUSED = new Region(Rows.CUT, Features.REPLICATED);

        private final PassForecast pass;
        private final int rank;
        private final List<ParameterCost> summed; // in the order of the tree
        private final Map<Parameter, Region> uses;
        private final boolean sharing; // whether ranks share out the state of the optimizer
        private final Map<Parameter, Long> shares = new IdentityHashMap<>(); // elements of the rank

        GradientSums(PassForecast pass, int rank) {
            this.pass = pass;
            this.rank = rank;
            uses = pass.getUses();
            sharing = model.shardOptimizer && StateKind.areOfElements(model.optimizer());
            summed =
                    getParameters().stream()
                            .filter(each -> each.parameter().requiresGradient())
                            .filter(each -> !pass.isOwn(each.parameter()))
                            .toList();
        }

        /**
         * Notes the sums.
         *
         * @return of how many elements of a shard or replica the rank keeps state, where ranks
         *     share it out
         */
        Map<Parameter, Long> forecast() {
            forecastReplicas();
            addBuckets(summed, summed.stream().map(this::gradient).toList());
            boolean ofRows = stateKinds.stream().anyMatch(StateKind::ofRows);
            for (ParameterCost parameter : summed) {
                if (ofRows && parameter.getAxis() > 0) {
                    add(
                            "row-wise Adagrad",
                            Collective.ALL_REDUCE,
                            pass.getTensorSize(),
                            parameter.shape().get(0) * Float.BYTES);
                }
            }
            return shares;
        }

        /** Notes the sums of gradients, or of parts of them, by the names of their parameters. */
        private void addBuckets(
                List<ParameterCost> parameters, List<BucketPlan.Gradient> gradients) {
            for (List<Integer> bucket : BucketPlan.fill(gradients, BucketPlan.BYTES)) {
                List<String> names =
                        bucket.stream().map(i -> parameters.get(i).name()).distinct().toList();
                long bytes = bucket.stream().mapToLong(i -> gradients.get(i).bytes()).sum();
                Object group = Objects.requireNonNull(gradients.get(bucket.get(0)).group());
                int size =
                        group instanceof PartialAxes.Over over
                                ? size(over)
                                : ((List<?>) group).size();
                String issuer = BucketPlan.describe(names);
                if (gradients.get(bucket.get(0)).sharedOut()) {
                    add(issuer, Collective.REDUCE_SCATTER, size, bytes);
                    add(issuer, Collective.ALL_GATHER, size, bytes);
                    share(
                            bucket.stream().map(parameters::get).toList(),
                            size,
                            place((PartialAxes.Over) group));
                } else {
                    add(issuer, Collective.ALL_REDUCE, size, bytes);
                }
            }
        }

        /** Notes which elements of the parameters of a bucket are the rank's. */
        private void share(List<ParameterCost> bucket, int ranks, int place) {
            List<Long> elements =
                    bucket.stream()
                            .map(each -> each.getShape(pass.getTensorRank()).size())
                            .toList();
            List<Cut> cuts = FlatGradients.cut(elements, ranks);
            for (int i = 0; i < cuts.size(); i++) {
                shares.put(bucket.get(i).parameter(), cuts.get(i).getShardLength(place));
            }
        }

        private void add(String issuer, Collective collective, int size, long bytes) {
            pass.add(issuer, Direction.STEP, collective, size, bytes);
        }

        private BucketPlan.Gradient gradient(ParameterCost parameter) {
            PartialAxes.Over ranks = over(parameter);
            long bytes = pass.bytes(parameter.getShape(pass.getTensorRank()));
            boolean part = sharing && (parameter.cut() == null || parameter.cut().isPartition());
            return new BucketPlan.Gradient(
                    size(ranks) == 1 ? null : ranks, part, model.dataType, model.device, bytes);
        }

        /** Returns over which ranks a gradient is summed. */
        private PartialAxes.Over over(ParameterCost parameter) {
            Region region = uses.getOrDefault(parameter.parameter(), UNUSED);
            boolean part = region.features() != Features.REPLICATED || region.isTokensCut();
            PartialAxes axes = new PartialAxes(region.isRowsCut(), part);
            return axes.over(parameter.isCut(), pass.getMesh().isOverlaid());
        }

        private int size(PartialAxes.Over ranks) {
            switch (ranks) {
                case DATA:
                    return pass.getDataSize();
                case TENSOR:
                    return pass.getTensorSize();
                case ALL:
                    return pass.getMesh().getRanks();
                default:
                    return 1;
            }
        }

        /** Returns the rank's place among the ranks of a group. */
        private int place(PartialAxes.Over ranks) {
            return switch (ranks) {
                case DATA -> pass.getMesh().getCoordinate(rank, DeviceMesh.DATA);
                case TENSOR -> pass.getTensorRank();
                case ALL, NONE -> rank;
            };
        }

        /** What several ranks of the tensor-parallel group have of parameters that are cut. */
        private void forecastReplicas() {
            List<ParameterCost> parameters = new ArrayList<>();
            List<BucketPlan.Gradient> parts = new ArrayList<>();
            for (ParameterCost parameter : summed) {
                for (Segment segment : shared(parameter)) {
                    parameters.add(parameter);
                    long whole = parameter.shape().get(parameter.getAxis());
                    long bytes = pass.bytes(parameter.shape()) / whole * segment.range().length();
                    parts.add(
                            new BucketPlan.Gradient(
                                    segment.ranks(), false, model.dataType, model.device, bytes));
                }
            }
            addBuckets(parameters, parts);
        }

        /** Returns what of a parameter the rank has in common with others. */
        private List<Segment> shared(ParameterCost parameter) {
            Cut cut = parameter.cut();
            return cut == null
                    ? List.of()
                    : cut.getSegments().stream()
                            .filter(Segment::isReplicated)
                            .filter(each -> each.ranks().contains(pass.getTensorRank()))
                            .toList();
        }
    }
}
