package io.djltp.training;

import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import io.djltp.collective.GatheredNumbers;
import io.djltp.job.JobFailedException;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankFailedException;
import io.djltp.rank.RankPool;
import io.djltp.sharding.ShardingStrategy;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Lets the processes of a job compare their networks when the shapes of all parameters are known,
 * and before one is handed out: a number of each, by one all-gather, and what they differ in only
 * if they do.
 */
final class NetworkComparison {

    private static final String UNTOLD =
            "the networks differ between the processes, but their first thousands of parameters do not:"
                    + " build the same network on all processes";

    private final Model model;
    private final ParallelConfig config;
    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final RandomnessCheck randomness;

    NetworkComparison(
            Model model, ParallelConfig config, RankPool ranks, ParallelParameters parameters) {
        this.model = model;
        this.config = config;
        this.ranks = ranks;
        this.parameters = parameters;
        randomness = new RandomnessCheck(model.getBlock(), config);
    }

    /** Returns what refuses networks that draw random numbers. */
    RandomnessCheck getRandomness() {
        return randomness;
    }

    /**
     * Prepares the network for inputs of some shapes. All processes call it.
     *
     * @throws RankFailedException on all processes, if two of them differ, or another one refuses
     */
    void prepare(Shape... shapes) {
        if (!ranks.isDistributed()) {
            prepareHere(shapes);
            return;
        }
        Comparison mine = Comparison.of(() -> prepareHere(shapes), this::facts);
        if (!ranks.isOver() && differs(mine.digest())) {
            try {
                end(mine.difference(config.getJob(), "the networks"));
            } catch (RankFailedException e) {
                mine.throwRefusal();
                throw e;
            }
        }
        mine.throwRefusal(); // all processes do
    }

    private void prepareHere(Shape... shapes) {
        randomness.check();
        parameters.prepare(model.getDataType(), shapes);
    }

    private boolean differs(long digest) {
        long[] all = ranks.run(context -> gather(context, digest)).get(0);
        for (long each : all) {
            if (each != all[0]) {
                return true;
            }
        }
        return false;
    }

    private long[] gather(ParallelContext context, long digest) {
        NDManager manager = parameters.getStore(context).getManager();
        long[] own = {digest};
        return GatheredNumbers.of(context.getWorld(), manager, own, "the comparison of networks");
    }

    /** Ends the ranks: of a network that only some processes have, nothing can be put together. */
    private void end(JobFailedException told) {
        ranks.run(
                context -> {
                    throw told != null ? told : new JobFailedException(UNTOLD, -1, -1, null);
                });
    }

    private Map<String, String> facts() {
        Map<String, String> facts = new LinkedHashMap<>();
        Block network = model.getBlock();
        addBlocks(facts, "the network", network, false);
        for (Pair<String, Parameter> named : network.getParameters()) {
            facts.put("the parameter " + named.getKey(), describe(named.getValue()));
        }
        addBlocks(facts, "the network", network, true);
        return facts;
    }

    /** Adds the classes of the blocks of a tree, or what they were built with. */
    private static void addBlocks(
            Map<String, String> facts, String path, Block block, boolean settings) {
        if (settings) {
            PlainSettings.addFields(facts, path, block);
        } else {
            facts.put(path, PlainSettings.className(block));
        }
        for (Pair<String, Block> child : block.getChildren()) {
            addBlocks(facts, path + "/" + child.getKey(), child.getValue(), settings);
        }
    }

    private String describe(Parameter parameter) {
        Shape shape = parameter.getShape();
        String text = shape.toString();
        if (parameter.isInitialized()) {
            text += " " + parameter.getArray().getDataType();
        }
        text += parameter.requiresGradient() ? "" : ", frozen";
        ShardingStrategy strategy = parameters.getStrategy(parameter);
        return strategy == null
                ? text
                : "%s, cut along axis %d (%s)"
                        .formatted(text, strategy.axis(shape), strategy.getClass().getSimpleName());
    }
}
