package io.djltp.training;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.TrainingConfig;
import ai.djl.util.Pair;

import io.djltp.collective.CollectiveException;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.job.AgreedSettings;
import io.djltp.internal.optimizer.OptimizerSettings;
import io.djltp.internal.parameters.BlockWalk;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.Checksum;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.BitSet;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.zip.CRC32C;

/**
 * Lets the processes of a job compare what they train, before the first step: the settings of their
 * trainers before any of them starts its ranks, the network and its initial values when the shapes
 * of all parameters are known. One number of each is gathered, and what differs only if it does.
 *
 * <p>Compared are names, shapes, types, strategies and initial values of parameters, the classes of
 * blocks, losses and initializers, and the numbers of the optimizer. Numbers of blocks and losses
 * are the caller's duty.
 */
final class ProcessAgreement {

    private static final String SAME =
            ": build the same network, with the same settings, on all processes";

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
    private final TrainingSteps steps;
    private long evaluatedAfter = -1; // the step
    private long evaluations; // since then
    private BitSet compared = new BitSet(); // which were frozen when networks were compared
    private @Nullable BitSet said; // which are frozen

    ProcessAgreement(
            Model model,
            ParallelConfig config,
            RankPool ranks,
            ParallelParameters parameters,
            TrainingSteps steps) {
        this.model = model;
        this.config = config;
        this.ranks = ranks;
        this.parameters = parameters;
        this.steps = steps;
    }

    /**
     * Throws if a trainer cannot be made, here or on another process. All processes call it.
     *
     * @return the model
     * @throws JobFailedException on all processes, if two of them differ, or another one throws
     */
    static Model check(Model model, TrainingConfig config, ParallelConfig ranks) {
        Job job = ranks.getJob();
        if (job == null || job.getProcesses() == 1) {
            return ParallelTrainingConfig.check(model, config, ranks);
        }
        Statement mine =
                Statement.of(
                        () -> ParallelTrainingConfig.check(model, config, ranks),
                        () -> settings(config, ranks));
        JobFailedException difference = mine.difference(job, "the settings of the trainers", SAME);
        mine.throwRefusal();
        if (difference != null) {
            throw difference;
        }
        return model;
    }

    private static Map<String, String> settings(TrainingConfig config, ParallelConfig ranks) {
        Map<String, String> facts = new LinkedHashMap<>();
        facts.put("the mode or mesh", ranks.describe());
        facts.put("optGradientClipNorm", "" + ranks.getGradientClipNorm());
        facts.put("optShardOptimizer", "" + ranks.isOptimizerSharded());
        facts.put("optDriftCheck", ranks.describeDriftCheck());
        facts.put("optBatchCheck", "" + ranks.isBatchCheck());
        facts.put("optRandomCheck", "" + ranks.isRandomCheck());
        facts.put("optLossScaling", "" + ranks.getLossScaling());
        facts.putAll(OptimizerSettings.describe(config.getOptimizer()));
        facts.put("the loss", className(config.getLossFunction()));
        return facts;
    }

    /**
     * Prepares the network for inputs of some shapes. All processes call it.
     *
     * @throws RankFailedException on all processes, if two of them differ, or another one throws
     */
    void prepare(Shape... shapes) {
        if (!ranks.isDistributed()) {
            prepareHere(shapes);
            return;
        }
        Statement network = Statement.of(() -> prepareHere(shapes), this::network);
        Statement values = Statement.of(() -> {}, this::initialValues);
        if (!ranks.isOver()) {
            try {
                compare(network, values);
            } catch (RankFailedException e) {
                network.throwRefusal();
                throw e;
            }
        }
        network.throwRefusal(); // all processes do
        compared = frozen();
        said = null;
    }

    private void prepareHere(Shape... shapes) {
        parameters.prepare(model.getDataType(), shapes);
    }

    private Job job() {
        return Objects.requireNonNull(config.getJob(), "job");
    }

    private void compare(Statement network, Statement values) {
        long[] all = gather("the comparison of networks", network.digest(), values.digest());
        if (differ(all, 0)) {
            end(network.difference(job(), "the networks", SAME));
        } else if (differ(all, 1)) {
            end(values.difference(job(), "the initial values", SEED));
        }
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

    /** Ends the ranks: of a network that only some processes have, nothing can be put together. */
    private void end(@Nullable JobFailedException told) {
        ranks.run(
                context -> {
                    throw told != null ? told : new JobFailedException(UNTOLD, -1, -1, null);
                });
    }

    private long[] gather(String what, long... own) {
        return ranks.run(context -> gather(context, what, own)).get(0);
    }

    private long[] gather(ParallelContext context, String what, long... own) {
        NDManager manager = parameters.getStore(context).getManager();
        return GatheredNumbers.of(context.getWorld(), manager, own, what);
    }

    private Map<String, String> network() {
        Map<String, String> facts = new LinkedHashMap<>();
        BlockWalk.of(
                model.getBlock(),
                (block, path, certain) -> {
                    if (certain) {
                        facts.put("the network" + below(path), className(block));
                    }
                });
        Map<Parameter, String> names = new IdentityHashMap<>();
        for (Pair<String, Parameter> named : model.getBlock().getParameters()) {
            String name = named.getKey();
            Parameter parameter = named.getValue();
            String first = names.putIfAbsent(parameter, name);
            facts.put(
                    "the parameter " + name,
                    describe(parameter) + (first == null ? "" : ", shared with " + first));
            if (parameter.getInitializer() != null) {
                facts.put("the initializer of " + name, className(parameter.getInitializer()));
            }
        }
        return facts;
    }

    private static String below(String path) {
        return path.isEmpty() || path.startsWith(".") ? path : "/" + path;
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

    /**
     * Compares settings of the processes, by one all-gather of one number. All processes call it.
     *
     * @param what what they are
     * @param settings their values by name, in an order that is the same on all processes
     * @param remedy what is to be done if they differ
     * @throws JobFailedException on all processes, if two of them differ
     */
    void checkSame(String what, Map<String, String> settings, String remedy) {
        if (!ranks.isDistributed()) {
            return;
        }
        Statement mine = Statement.of(() -> {}, () -> settings);
        long[] all = gather(what, mine.digest());
        if (Arrays.stream(all).distinct().count() > 1) {
            JobFailedException told = mine.difference(job(), what, ": " + remedy);
            String untold = what + " differ between the processes, beyond what is told: " + remedy;
            throw told != null ? told : new JobFailedException(untold, -1, -1, null);
        }
    }

    /**
     * Compares what a forward pass in training is given, if that is due in its step.
     *
     * @param data the data of this process's batch
     * @param labels its labels, or {@code null} if they come with the loss
     * @return what compares labels that come with the loss, and were not given here
     */
    Consumer<NDList> compareBatch(NDList data, @Nullable NDList labels) {
        long step = steps.count() + 1;
        if (!ranks.isDistributed() || !config.isBatchCheckDue(step)) {
            return others -> {};
        }
        String where = "in step " + step;
        gather(where, "the comparison of batches", data, labels);
        return others -> gather(where, "the comparison of labels", null, others);
    }

    /**
     * Compares what is evaluated, if that is due.
     *
     * @param data the data of this process's batch
     */
    void compareEvaluated(NDList data) {
        if (!ranks.isDistributed()) {
            return;
        }
        long step = steps.count();
        evaluations = step == evaluatedAfter ? evaluations + 1 : 1;
        evaluatedAfter = step;
        boolean first = evaluations == 1 && config.isBatchCheckDue(0); // every so many, from 0
        if (first || config.isBatchCheckDue(evaluations)) {
            String where = "in evaluation batch " + evaluations + " after step " + step;
            gather(where, "the comparison of evaluation batches", data, null);
        }
    }

    private void gather(
            String where, String issuer, @Nullable NDList data, @Nullable NDList labels) {
        long[] own = {checksum(data), checksum(labels)};
        ranks.runAll(
                context -> {
                    compare(gather(context, issuer, own), own.length, where);
                });
    }

    private static void compare(long[] all, int kinds, String where) {
        for (int i = 0; i < all.length; i++) {
            if (all[i] != all[i % kinds]) {
                throw new CollectiveException(
                        ("%s rank %d has %s of another batch than rank 0: let all processes"
                                        + " iterate the same batches, in the same order")
                                .formatted(
                                        where,
                                        i / kinds,
                                        i % kinds == 0 ? "the data" : "the labels"));
            }
        }
    }

    /** Returns 0 for what comes at another time. */
    private static long checksum(@Nullable NDList arrays) {
        long sum = 0;
        for (NDArray array : arrays == null ? new NDList() : arrays) {
            int shape = Arrays.hashCode(array.getShape().getShape());
            sum = 31 * (31 * sum + shape) + Checksum.of(array);
        }
        return sum;
    }

    /**
     * Says with each collective operation from here on which parameters are frozen. If one process
     * alone freezes a sharded parameter, its operations would be the same as those of the others.
     */
    void sayFrozen() {
        if (!ranks.isDistributed()) {
            return;
        }
        BitSet frozen = frozen();
        if (!frozen.equals(said)) {
            said = frozen;
            CRC32C checksum = new CRC32C();
            checksum.update(frozen.toByteArray());
            String terms =
                    frozen.equals(compared) // as running statistics are from the beginning
                            ? ""
                            : "%d of %d parameters frozen%s (checksum %x)"
                                    .formatted(
                                            frozen.cardinality(),
                                            parameters.getAll().size(),
                                            frozen.isEmpty() ? "" : ", the last " + lastOf(frozen),
                                            checksum.getValue());
            for (int i = 0; i < ranks.size(); i++) {
                AbstractCommunicator.of(ranks.getContext(i).getWorld()).setAgreement(terms);
            }
        }
    }

    private String lastOf(BitSet frozen) {
        return parameters.nameOf(parameters.getAll().get(frozen.length() - 1));
    }

    private BitSet frozen() {
        List<Parameter> each = parameters.getAll();
        BitSet frozen = new BitSet(each.size());
        for (int i = 0; i < each.size(); i++) {
            frozen.set(i, !each.get(i).requiresGradient());
        }
        return frozen;
    }

    /** Returns the name of an object's class; that of a lambda is another one in every process. */
    private static String className(Object value) {
        return value.getClass().getName().replaceFirst("\\$\\$Lambda.*", " (a lambda)");
    }

    /** What a process says of itself to the others: facts by name, or why it throws. */
    private static final class Statement {

        private static final char REFUSED = '!';
        private static final char FACTS = '=';
        private static final int NOTHING_SAID = 1; // bytes: the mark, and no facts behind it

        private final @Nullable RuntimeException refusal;
        private final byte[] said;

        private Statement(@Nullable RuntimeException refusal, String said) {
            this.refusal = refusal;
            this.said = said.getBytes(StandardCharsets.UTF_8);
        }

        /** Does this process's part, and notes what comes of it. */
        static Statement of(Runnable part, Supplier<Map<String, String>> facts) {
            try {
                part.run();
                return new Statement(null, FACTS + new AgreedSettings(facts.get()).write());
            } catch (RuntimeException e) {
                return new Statement(e, REFUSED + e.toString());
            }
        }

        /** Returns a number that follows from what was said; 0 if there was nothing to say. */
        long digest() {
            if (said.length == NOTHING_SAID) {
                return 0;
            }
            try {
                byte[] sum = MessageDigest.getInstance("SHA-256").digest(said);
                return ByteBuffer.wrap(sum).getLong();
            } catch (NoSuchAlgorithmException e) {
                throw new IllegalStateException("Every Java has SHA-256", e);
            }
        }

        /** Throws what this process's part has thrown. */
        void throwRefusal() {
            if (refusal != null) {
                throw refusal;
            }
        }

        /**
         * Compares what all processes say. All call it.
         *
         * @return the first refusal of another process, or else the first difference; {@code null}
         *     if there is none in the first {@link Job#getExchangeLimit} bytes
         */
        @Nullable JobFailedException difference(Job job, String what, String remedy) {
            int limit = job.getExchangeLimit();
            byte[] mine = said.length > limit ? Arrays.copyOf(said, limit) : said;
            byte[][] all = job.exchange(what, mine);
            String[] texts = new String[all.length];
            Arrays.setAll(texts, i -> new String(all[i], StandardCharsets.UTF_8));
            for (int i = 0; i < texts.length; i++) {
                if (texts[i].charAt(0) == REFUSED && refusal == null) {
                    String text = job.getMember(i) + " failed: " + texts[i].substring(1);
                    return new JobFailedException(text, i, -1, null);
                }
            }
            Arrays.setAll(texts, i -> texts[i].substring(1));
            String text = AgreedSettings.difference(job, texts);
            String differ = what + " differ between the processes: " + text + remedy;
            return text == null ? null : new JobFailedException(differ, -1, -1, null);
        }
    }
}
