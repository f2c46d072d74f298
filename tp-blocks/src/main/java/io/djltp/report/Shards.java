package io.djltp.report;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.optimizer.OptimizerState;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.StepParticipant;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.training.ParallelTrainer;

import java.util.List;
import java.util.Map;

/** What the ranks hold of a model: which part of each parameter, and how many bytes. */
final class Shards {

    /** More rows nobody reads. */
    private static final int MOST_PARAMETERS = 200;

    private Shards() {}

    /**
     * What a rank holds, in bytes.
     *
     * @param weights its shards and replicas
     * @param state what the optimizer keeps of them
     */
    record Held(long weights, long state) {}

    /** Returns what the ranks of this process hold. To be called while no step is running. */
    static List<Held> held(ParallelTrainer trainer) {
        return trainer.getRanks().run(context -> held(trainer, context));
    }

    private static Held held(ParallelTrainer trainer, ParallelContext context) {
        int rank = context.getLocalIndex();
        RankParameterStore store = trainer.getParameterStore(rank);
        long weights = 0;
        for (Parameter parameter : trainer.getState().getParameters().getAll()) {
            if (store.contains(parameter)) {
                weights += bytes(store.getHeld(parameter));
            }
        }
        long state = 0;
        OptimizerState kept = trainer.getOptimizerState(rank);
        try (NDManager manager = store.getManager().newSubManager()) {
            for (String name : kept.getNames()) {
                state += bytes(kept.get(name, manager));
            }
            for (StepParticipant participant : context.getParticipants()) {
                state += bytes(participant.getState(manager));
            }
        }
        return new Held(weights, state);
    }

    private static long bytes(Map<String, NDArray> arrays) {
        return arrays.values().stream().mapToLong(Shards::bytes).sum();
    }

    private static long bytes(NDArray array) {
        return array.size() * array.getDataType().getNumOfBytes();
    }

    /** Returns which ranges of each parameter the ranks of a tensor-parallel group have. */
    static JsonArray picture(ParallelTrainer trainer) {
        ParallelParameters parameters = trainer.getState().getParameters();
        int ranks = trainer.getRanks().getContext(0).getTensorGroup().getSize();
        JsonArray picture = new JsonArray();
        for (Parameter parameter : parameters.getAll()) {
            if (picture.size() < MOST_PARAMETERS) {
                ShardingStrategy strategy = parameters.getStrategy(parameter);
                picture.add(row(parameters.nameOf(parameter), parameter, strategy, ranks));
            }
        }
        return picture;
    }

    private static JsonObject row(
            String name, Parameter parameter, ShardingStrategy strategy, int ranks) {
        Shape shape = parameter.getShape();
        JsonObject row = new JsonObject();
        row.addProperty("name", name);
        row.addProperty("shape", shape.toString());
        int axis = strategy == null || ranks == 1 ? -1 : strategy.axis(shape);
        row.addProperty("axis", axis);
        if (axis >= 0) {
            row.addProperty("length", shape.get(axis));
            row.add("ranges", ranges(strategy.cut(shape, ranks)));
        }
        return row;
    }

    private static JsonArray ranges(Cut cut) {
        JsonArray ranks = new JsonArray();
        for (int rank = 0; rank < cut.getRanks(); rank++) {
            JsonArray ranges = new JsonArray();
            for (ShardRange range : cut.getRanges(rank)) {
                JsonArray pair = new JsonArray();
                pair.add(range.start());
                pair.add(range.end());
                ranges.add(pair);
            }
            ranks.add(ranges);
        }
        return ranks;
    }
}
