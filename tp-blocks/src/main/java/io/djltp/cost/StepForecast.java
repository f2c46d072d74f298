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
        stateSize = StateSize.of(model.optimizer);
        blockNames = BlockNames.of(model.block);
        tensorSize =
                model.mesh.isCut(DeviceMesh.TENSOR) ? model.mesh.getSize(DeviceMesh.TENSOR) : 1;
        for (Pair<String, Parameter> named : model.block.getParameters()) {
            parameterNames.putIfAbsent(named.getValue(), named.getKey());
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
                ParameterCost cost = cost(named.getKey(), parameter, first);
                parameters.put(parameter, cost);
                ordered.add(cost);
            }
        }
        for (int rank = 0; rank < model.mesh.getRanks(); rank++) {
            PassForecast pass = forward(rank);
            new GradientSums(pass, ordered, model.device, model.dataType)
                    .forecast(stateSize.ofRow() > 0);
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
        boolean hasGradient = parameter.requiresGradient() && !pass.isOwn(parameter);
        return new ParameterCost(parameter, name, shape, strategy, cut, hasGradient);
    }

    /** Returns what a parameter takes on a rank of the tensor-parallel group. */
    RankCost cost(ParameterCost parameter, int tensorRank) {
        Shape own = parameter.getShape(tensorRank);
        long bytes = own.size() * model.dataType.getNumOfBytes();
        return new RankCost(
                bytes,
                parameter.hasGradient() ? bytes : 0,
                parameter.parameter().requiresGradient() ? stateSize.bytes(own) : 0);
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
        boolean rowSparse = model.optimizer.isRowSparse();
        ForecastModel known =
                new ForecastModel(
                        model.dataType, rowSparse, new TreeWalk(), blockNames, parameterNames);
        long rows = model.inputs[0].get(0);
        PassForecast pass = new PassForecast(model.mesh, rank, rows, known);
        Rows lie = pass.getDataSize() > 1 ? Rows.CUT : Rows.WHOLE;
        Region start = new Region(lie, Features.REPLICATED);
        ForecastArray input = new ForecastArray(model.inputs[0], start, null, false);
        addLoss(pass, pass.visit(model.block, input).withShape(pass.ofBatch(output)));
        return pass;
    }

    /** The loss of the rank's rows, and the mean over the ranks; or that of all rows, gathered. */
    private void addLoss(PassForecast pass, ForecastArray predictions) {
        Loss loss = model.loss;
        if (predictions.region().isShard() && !(loss instanceof ForecastLoss)) {
            throw new IllegalArgumentException(
                    loss.getName()
                            + " cannot be computed of slices of the features: use"
                            + " VocabParallelCrossEntropyLoss, or let a layer with"
                            + " optGatherOutput(true) be the last");
        }
        boolean ofParts = MeanLosses.contains(loss) && predictions.region().isRowsCut();
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
