package io.djltp.training;

import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.Pair;
import ai.djl.util.PairList;

import io.djltp.collective.GatheredNumbers;
import io.djltp.job.JobFailedException;
import io.djltp.parameters.BlockWalk;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankFailedException;
import io.djltp.rank.RankPool;
import io.djltp.sharding.ShardingStrategy;

import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Lets the processes of a job compare their networks when the shapes of all parameters are known,
 * and before one is handed out: a number of each, by one all-gather, and what they differ in only
 * if they do.
 */
final class NetworkComparison {

    private static final String SEED =
            ": set the same seed (Engine.getInstance().setRandomSeed) and initializers, or load the"
                    + " same file, on all processes";

    private static final String UNTOLD =
            "the networks differ between the processes, but their first thousands of parameters do"
                    + " not: build the same network on all processes";

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
        Comparison values = Comparison.of(() -> {}, this::initialValues);
        if (!ranks.isOver()) {
            try {
                compare(mine, values);
            } catch (RankFailedException e) {
                mine.throwRefusal();
                throw e;
            }
        }
        mine.throwRefusal(); // all processes do
    }

    private void compare(Comparison networks, Comparison values) {
        long[] own = {networks.digest(), values.digest()};
        long[] all = ranks.run(context -> gather(context, own)).get(0);
        if (differ(all, 0)) {
            end(networks.difference(config.getJob(), "the networks", Comparison.SAME));
        } else if (differ(all, 1)) {
            end(values.difference(config.getJob(), "the initial values", SEED));
        }
    }

    private void prepareHere(Shape... shapes) {
        randomness.check();
        parameters.prepare(model.getDataType(), shapes);
    }

    /** Returns whether one of two numbers of each rank differs where there is one. */
    private static boolean differ(long[] all, int which) {
        for (int i = which; i < all.length; i += 2) {
            if (all[i] != 0 && all[i] != all[which]) { // rank 0 has all there are
                return true;
            }
        }
        return false;
    }

    private long[] gather(ParallelContext context, long... own) {
        NDManager manager = parameters.getStore(context).getManager();
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
        Map<String, Block> blocks = blocks(model.getBlock());
        PairList<String, Parameter> all = model.getBlock().getParameters();
        blocks.forEach((path, block) -> facts.put(path, PlainSettings.className(block)));
        Map<Parameter, String> names = new IdentityHashMap<>();
        for (Pair<String, Parameter> named : all) {
            String name = named.getKey();
            String first = names.putIfAbsent(named.getValue(), name);
            String shared = first == null ? "" : ", shared with " + first;
            facts.put("the parameter " + name, describe(named.getValue()) + shared);
        }
        blocks.forEach((path, block) -> PlainSettings.addFields(facts, path, block));
        all.forEach(named -> addInitializer(facts, named));
        return facts;
    }

    /** Returns the blocks that a network surely uses, by where they are. */
    static Map<String, Block> blocks(Block network) {
        Map<String, Block> blocks = new LinkedHashMap<>();
        BlockWalk.of(
                network,
                (block, path, certain) -> {
                    if (certain) {
                        blocks.put("the network" + path(path), block);
                    }
                });
        return blocks;
    }

    private static String path(String below) {
        return below.isEmpty() || below.startsWith(".") ? below : "/" + below;
    }

    private static void addInitializer(Map<String, String> facts, Pair<String, Parameter> named) {
        Initializer initializer = named.getValue().getInitializer();
        PlainSettings.add(facts, "the initializer of " + named.getKey(), initializer);
    }

    /** Returns what the ranks would start with a mixture of. */
    private Map<String, String> initialValues() {
        Map<String, String> values = new LinkedHashMap<>();
        for (Pair<String, Parameter> named : model.getBlock().getParameters()) {
            Long checksum = parameters.initialChecksum(named.getValue());
            if (checksum != null) {
                values.put("the checksum of " + named.getKey(), Long.toHexString(checksum));
            }
        }
        return values;
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
