package io.djltp.cost;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Pair;
import ai.djl.util.Preconditions;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.cut.Cut;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.ForecastBlock;
import io.djltp.forecast.ForecastLoss;
import io.djltp.forecast.ForecastModel;
import io.djltp.forecast.PassForecast;
import io.djltp.layout.Region;
import io.djltp.layout.Region.Features;
import io.djltp.layout.Region.Rows;
import io.djltp.loss.MeanLosses;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.PositionEmbedding;
import io.djltp.nn.transformer.SinusoidalPositions;
import io.djltp.optimizer.OptimizerSettings;
import io.djltp.optimizer.StateKind;
import io.djltp.parameters.BlockWalk;
import io.djltp.parameters.ShapesOnly;
import io.djltp.parameters.ShardedBlock;
import io.djltp.rank.DeviceMesh;
import io.djltp.sharding.ShardingStrategy;

import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
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
 * {@link io.djltp.rank.CommunicationCounter} counts it: forward and backward pass on a batch, and
 * the update; no evaluators, no checks of replicas. Activations and the working memory of layers
 * are not counted. The children of blocks that are not DJL's and not of this library are taken to
 * be used once, in the order in which they were added.
 */
public final class ModelCost {

    /** Blocks of the library that compute on each rank, and send nothing. */
    private static final Set<Class<?>> SILENT =
            Set.of(
                    ParallelDropout.class,
                    RmsNorm.class,
                    PositionEmbedding.class,
                    SinusoidalPositions.class);

    private final Builder model;
    private final List<StateKind> stateKinds;
    private final Map<Block, String> blockNames;
    private final Map<Parameter, String> parameterNames = new IdentityHashMap<>();
    private final Map<Parameter, ShardingStrategy> strategies = new IdentityHashMap<>();
    private final Map<Parameter, ParameterCost> parameters = new LinkedHashMap<>();
    private final List<TrafficTable> tables = new ArrayList<>(); // by rank
    private final List<LayerCost> layers = new ArrayList<>();
    private final int tensorSize;

    /** Forecasts a step of each rank, while the network has shapes. */
    private ModelCost(Builder model) {
        this.model = model;
        stateKinds = model.training ? StateKind.of(model.optimizer) : List.of();
        blockNames = BlockWalk.namesOf(model.block);
        tensorSize =
                model.mesh.isCut(DeviceMesh.TENSOR) ? model.mesh.getSize(DeviceMesh.TENSOR) : 1;
        for (Pair<String, Parameter> named : model.block.getParameters()) {
            // of one that blocks share the last counts, as in the training
            parameterNames.put(named.getValue(), named.getKey());
        }
        findStrategies(model.block);
        Shape output = model.block.getOutputShapes(model.row())[0];
        PassForecast first = forward(0, output);
        for (Parameter parameter : model.block.getParameters().values()) {
            parameters.computeIfAbsent(parameter, key -> cost(key, first));
        }
        for (int rank = 0; rank < model.mesh.getRanks(); rank++) {
            PassForecast pass = forward(rank, output);
            if (model.training) {
                new GradientSums(pass, getParameters(), model.device, model.dataType)
                        .forecast(stateKinds.stream().anyMatch(StateKind::ofRows));
            }
            tables.add(pass.getTable());
        }
        addLayers(model.block, first);
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
        return model.mesh;
    }

    /**
     * Returns the place of a rank among those over which layers are cut.
     *
     * @param rank the rank
     * @return the place, from 0
     */
    public int getTensorRank(int rank) {
        return tensorSize == 1 ? 0 : model.mesh.getCoordinate(rank, DeviceMesh.TENSOR);
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
        return new RankCost(
                bytes,
                parameter.hasGradient() ? bytes : 0,
                trained ? stateKinds.stream().mapToLong(kind -> kind.bytes(own)).sum() : 0);
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
        if (block instanceof ShardedBlock sharded && tensorSize > 1) {
            for (Parameter parameter : block.getDirectParameters().values()) {
                ShardingStrategy strategy = sharded.getShardingStrategy(parameter);
                if (!strategy.isReplicated()) {
                    strategies.put(parameter, strategy);
                    String name = parameterNames.get(parameter);
                    strategy.checkSplit(name, parameter.getShape(), tensorSize);
                }
            }
        }
        block.getChildren().values().forEach(this::findStrategies);
    }

    private ParameterCost cost(Parameter parameter, PassForecast pass) {
        ShardingStrategy strategy = strategies.get(parameter);
        Shape shape = parameter.getShape();
        Cut cut = strategy == null ? null : strategy.cut(shape, tensorSize);
        boolean trained = model.training && parameter.requiresGradient();
        boolean hasGradient = trained && !pass.isOwn(parameter);
        String name = parameterNames.get(parameter);
        return new ParameterCost(parameter, name, shape, strategy, cut, hasGradient);
    }

    private void addLayers(Block block, PassForecast pass) {
        if (!block.getDirectParameters().isEmpty()) {
            Shape[] inputs = block.getInputShapes();
            layers.add(
                    new LayerCost(
                            blockNames.get(block),
                            block.getClass().getSimpleName(),
                            inputs == null ? new Shape() : pass.ofBatch(inputs[0]),
                            block instanceof ForecastBlock said ? said.getEquation() : "",
                            block.getDirectParameters().values().stream()
                                    .map(parameters::get)
                                    .toList()));
        }
        block.getChildren().values().forEach(child -> addLayers(child, pass));
    }

    private PassForecast forward(int rank, Shape output) {
        ForecastModel known =
                new ForecastModel(
                        model.dataType,
                        model.idType,
                        model.training,
                        model.training && model.optimizer.isRowSparse(),
                        ModelCost::checkSilent,
                        blockNames,
                        parameterNames);
        long rows = model.inputs[0].get(0);
        PassForecast pass = new PassForecast(model.mesh, rank, rows, known);
        Rows lie = pass.getDataSize() > 1 ? Rows.CUT : Rows.WHOLE;
        Region start = new Region(lie, Features.REPLICATED);
        ForecastArray[] inputs =
                Stream.of(model.inputs)
                        .map(shape -> new ForecastArray(shape, start, null, false))
                        .toArray(ForecastArray[]::new);
        ForecastArray whole = pass.visit(model.block, inputs).withShape(pass.ofBatch(output));
        checkOutput(whole);
        if (model.training) {
            addLoss(pass, whole);
        }
        return pass;
    }

    private void checkOutput(ForecastArray whole) {
        if (whole.region().isTokensCut()) {
            throw new IllegalArgumentException(
                    "The output of the network has a rank's tokens only: end the sequence-parallel"
                            + " region with a SequenceGather, or with a ColumnParallelLinear with"
                            + " optSequenceParallel(true)");
        }
        if (!model.training && whole.region().isShard()) {
            throw new IllegalArgumentException(
                    "The output of the network is a slice of the features on each rank, which a"
                            + " ParallelPredictor cannot return: build the last layer with"
                            + " optGatherOutput(true), or forecast a training step");
        }
    }

    /** The loss of the rank's rows, and the mean over the ranks; or that of all rows, gathered. */
    private void addLoss(PassForecast pass, ForecastArray predictions) {
        Loss loss = model.loss;
        if (!(loss instanceof ForecastLoss)) {
            ForecastLoss.checkWhole(loss, predictions);
        }
        boolean ofParts =
                MeanLosses.contains(loss, predictions.shape()) && predictions.region().isRowsCut();
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

    /** Refuses a block of the library that communicates, and cannot say what from shapes yet. */
    private static void checkSilent(Block block) {
        boolean ours = block.getClass().getName().startsWith("io.djltp.nn.");
        if (ours && !SILENT.contains(block.getClass())) {
            throw new IllegalArgumentException(
                    "The cost of a "
                            + block.getClass().getSimpleName()
                            + " is not forecast yet: count a step of it with CommunicationCounter");
        }
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

        private Block block;
        private DeviceMesh mesh;
        private Shape[] inputs = {};
        private Loss loss;
        private OptimizerSettings optimizer;
        private DataType dataType = DataType.FLOAT32;
        private DataType idType = DataType.INT64;
        private boolean training = true;
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
            Preconditions.checkArgument(
                    block != null && mesh != null && inputs.length > 0,
                    "You must set block, mesh and inputs");
            Preconditions.checkArgument(
                    !training || loss != null && optimizer != null,
                    "You must set loss and optimizer, or optTraining(false)");
            int sharing = mesh.isCut(DeviceMesh.DATA) ? mesh.getSize(DeviceMesh.DATA) : 1;
            Preconditions.checkArgument(
                    inputs[0].dimension() > 0 && inputs[0].get(0) >= sharing,
                    "A batch of "
                            + inputs[0]
                            + " cannot be shared by "
                            + sharing
                            + " ranks: each needs a row or more");
            ModelCost[] cost = new ModelCost[1];
            ShapesOnly.read(block, dataType, () -> cost[0] = new ModelCost(this), row());
            return cost[0];
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
}
