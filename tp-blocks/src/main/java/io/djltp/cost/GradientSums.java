package io.djltp.cost;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Parameter;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.cut.Segment;
import io.djltp.forecast.PassForecast;
import io.djltp.internal.gradient.BucketPlan;
import io.djltp.internal.gradient.PartialAxes;
import io.djltp.internal.gradient.SumOver;
import io.djltp.layout.Region;
import io.djltp.layout.Region.Features;
import io.djltp.layout.Region.Rows;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** What a step communicates of the gradients of parameters, as the trainer's step does. */
final class GradientSums {

    /** What one rank has not used may have been used with the rows of another. */
    private static final Region UNUSED = new Region(Rows.CUT, Features.REPLICATED);

    private final PassForecast pass;
    private final List<ParameterCost> summed; // in the order of the tree
    private final Device device;
    private final DataType dataType;
    private final Map<Parameter, Region> uses;

    GradientSums(
            PassForecast pass, List<ParameterCost> parameters, Device device, DataType dataType) {
        this.pass = pass;
        this.device = device;
        this.dataType = dataType;
        uses = pass.getUses();
        summed =
                parameters.stream()
                        .filter(each -> each.parameter().requiresGradient())
                        .filter(each -> !pass.isOwn(each.parameter()))
                        .toList();
    }

    /**
     * Notes the sums.
     *
     * @param ofRows whether the optimizer keeps numbers of rows, of which ranks that share a row
     *     sum the squares
     */
    void forecast(boolean ofRows) {
        forecastReplicas();
        addBuckets(summed, summed.stream().map(this::gradient).toList());
        for (ParameterCost parameter : summed) {
            if (ofRows && parameter.getAxis() > 0) {
                add(
                        "row-wise Adagrad",
                        pass.getTensorSize(),
                        parameter.shape().get(0) * Float.BYTES);
            }
        }
    }

    /** Notes the sums of gradients, or of parts of them, by the names of their parameters. */
    private void addBuckets(List<ParameterCost> parameters, List<BucketPlan.Gradient> gradients) {
        for (List<Integer> bucket : BucketPlan.fill(gradients, BucketPlan.BYTES)) {
            List<String> names =
                    bucket.stream().map(i -> parameters.get(i).name()).distinct().toList();
            long bytes = bucket.stream().mapToLong(i -> gradients.get(i).bytes()).sum();
            Object group = gradients.get(bucket.get(0)).group();
            int size = group instanceof SumOver over ? size(over) : ((List<?>) group).size();
            add(BucketPlan.describe(names), size, bytes);
        }
    }

    private void add(String issuer, int size, long bytes) {
        pass.add(issuer, Direction.STEP, Collective.ALL_REDUCE, size, bytes);
    }

    private BucketPlan.Gradient gradient(ParameterCost parameter) {
        Region region = uses.getOrDefault(parameter.parameter(), UNUSED);
        boolean part = region.features() != Features.REPLICATED || region.isTokensCut();
        PartialAxes axes = new PartialAxes(region.isRowsCut(), part);
        SumOver ranks = SumOver.of(axes, parameter.isCut(), pass.getMesh().isOverlaid());
        long bytes = pass.bytes(parameter.getShape(pass.getTensorRank()));
        return new BucketPlan.Gradient(size(ranks) == 1 ? null : ranks, dataType, device, bytes);
    }

    private int size(SumOver ranks) {
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

    /** What several ranks of the tensor-parallel group have of parameters that are cut. */
    private void forecastReplicas() {
        List<ParameterCost> parameters = new ArrayList<>();
        List<BucketPlan.Gradient> parts = new ArrayList<>();
        for (ParameterCost parameter : summed) {
            for (Segment segment : shared(parameter)) {
                parameters.add(parameter);
                long whole = parameter.shape().get(parameter.getAxis());
                long bytes = pass.bytes(parameter.shape()) / whole * segment.range().length();
                parts.add(new BucketPlan.Gradient(segment.ranks(), dataType, device, bytes));
            }
        }
        addBuckets(parameters, parts);
    }

    /** Returns what of a parameter the rank has in common with others. */
    private List<Segment> shared(ParameterCost parameter) {
        return parameter.isCut()
                ? parameter.cut().getSegments().stream()
                        .filter(Segment::isReplicated)
                        .filter(each -> each.ranks().contains(pass.getTensorRank()))
                        .toList()
                : List.of();
    }
}
