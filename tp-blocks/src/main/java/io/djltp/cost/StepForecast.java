package io.djltp.cost;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.loss.Loss;
import ai.djl.util.Pair;

import io.djltp.collective.Collective;
import io.djltp.collective.Direction;
import io.djltp.collective.TrafficTable;
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
import io.djltp.optimizer.StateSize;
import io.djltp.parameters.BlockNames;
import io.djltp.parameters.ShardedBlock;
import io.djltp.rank.DeviceMesh;
import io.djltp.sharding.ShardingStrategy;

import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/** Forecasts a step of each rank of a mesh, while the network has shapes. */
final class StepForecast {

    private final ModelCost.Builder model;
    private final StateSize stateSize;
    private final Map<Block, String> blockNames;
    private final Map<Parameter, String> parameterNames = new IdentityHashMap<>();
    private final Map<Parameter, ShardingStrategy> strategies = new IdentityHashMap<>();
    private final Map<Parameter, ParameterCost> parameters = new IdentityHashMap<>();
    private final List<ParameterCost> ordered = new ArrayList<>();
    private final List<TrafficTable> tables = new ArrayList<>();
    private final int tensorSize;
    private Shape output; // of the network

    StepForecast(ModelCost.Builder model) {
        this.model = model;
        stateSize = model.training ? StateSize.of(model.optimizer) : null;
        blockNames = BlockNames.of(model.block);
        tensorSize =
                model.mesh.isCut(DeviceMesh.TENSOR) ? model.mesh.getSize(DeviceMesh.TENSOR) : 1;
        for (Pair<String, Parameter> named : model.block.getParameters()) {
            // of one that blocks share the last counts, as in the training
            parameterNames.put(named.getValue(), named.getKey());
        }
    }

    /** Reads everything that follows from shapes, and returns the layers. */
    List<LayerCost> read() {
        findStrategies(model.block);
        output = model.block.getOutputShapes(model.row())[0];
        PassForecast first = forward(0);
        for (Pair<String, Parameter> named : model.block.getParameters()) {
            Parameter parameter = named.getValue();
            if (!parameters.containsKey(parameter)) {
                ParameterCost cost = cost(parameterNames.get(parameter), parameter, first);
                parameters.put(parameter, cost);
                ordered.add(cost);
            }
        }
        for (int rank = 0; rank < model.mesh.getRanks(); rank++) {
            PassForecast pass = forward(rank);
            if (model.training) {
                new GradientSums(pass, ordered, model.device, model.dataType)
                        .forecast(stateSize.ofRow() > 0);
            }
            tables.add(pass.getTable());
        }
        List<LayerCost> layers = new ArrayList<>();
        addLayers(model.block, first, layers);
        return layers;
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

    private ParameterCost cost(String name, Parameter parameter, PassForecast pass) {
        ShardingStrategy strategy = strategies.get(parameter);
        Shape shape = parameter.getShape();
        Cut cut = strategy == null ? null : strategy.cut(shape, tensorSize);
        boolean trained = model.training && parameter.requiresGradient();
        boolean hasGradient = trained && !pass.isOwn(parameter);
        return new ParameterCost(parameter, name, shape, strategy, cut, hasGradient);
    }

    /** Returns what a parameter takes on a rank of the tensor-parallel group. */
    RankCost cost(ParameterCost parameter, int tensorRank) {
        Shape own = parameter.getShape(tensorRank);
        long bytes = own.size() * model.dataType.getNumOfBytes();
        boolean trained = model.training && parameter.parameter().requiresGradient();
        return new RankCost(
                bytes, parameter.hasGradient() ? bytes : 0, trained ? stateSize.bytes(own) : 0);
    }

    private void addLayers(Block block, PassForecast pass, List<LayerCost> layers) {
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
        block.getChildren().values().forEach(child -> addLayers(child, pass, layers));
    }

    private PassForecast forward(int rank) {
        ForecastModel known =
                new ForecastModel(
                        model.dataType,
                        model.idType,
                        model.training,
                        model.training && model.optimizer.isRowSparse(),
                        new TreeWalk(),
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

    List<ParameterCost> getParameters() {
        return ordered;
    }

    List<TrafficTable> getTables() {
        return tables;
    }
}
