package io.djltp.training;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.convolutional.Conv1d;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.initializer.XavierInitializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.CyclicalTracker;
import ai.djl.training.tracker.CyclicalTracker.CyclicalMode;
import ai.djl.training.tracker.ParameterTracker;
import ai.djl.training.tracker.Tracker;

import com.tngtech.archunit.core.importer.ClassFileImporter;
import com.tngtech.archunit.core.importer.ImportOption;

import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.head.Reduction;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.SyncBatchNorm;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.nn.moe.RouterLoss;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Supplier;

/** Every option of a layer, a loss, an optimizer or a tracker is among what processes compare. */
public class PlainSettingsTest {

    /** What can differ, or cannot be seen. */
    private static final Set<String> NOT_COMPARED =
            Set.of(
                    "ClassificationHead.optFusedMemory(long)", // a machine may have less of it
                    "ClassificationHead.optTiedWeight(VocabParallelEmbedding)", // with parameters
                    "ColumnParallelLinear.optTiedWeight(VocabParallelEmbedding)",
                    "MixtureOptions.optActivation(Function)", // what a lambda computes
                    "ParallelMlp.optActivation(Function)",
                    "RouterLoss.setNetwork(Block)"); // by itself

    private static final RotaryEmbedding ROTARY = RotaryEmbedding.builder().build();

    /** Two values of each type that an option can have. */
    private static final Map<Class<?>, Object[]> VALUES =
            Map.ofEntries(
                    pair(boolean.class, false, true),
                    pair(int.class, 2, 4),
                    pair(long.class, 8L, 16L),
                    pair(float.class, 0.25f, 0.5f),
                    pair(double.class, 1.25, 1.5),
                    pair(Precision.class, Precision.FLOAT32, Precision.BFLOAT16),
                    pair(Margin.class, null, Margin.arcFace(64, 0.5f)),
                    pair(Block.class, Activation.reluBlock(), Activation.tanhBlock()),
                    pair(Supplier.class, layerNorm(1e-5f), layerNorm(1e-6f)),
                    pair(Cut.class, Cut.ofLengths(8, 8), Cut.ofLengths(6, 10)),
                    pair(Loss.class, Loss.l1Loss(), Loss.l2Loss()),
                    pair(RotaryEmbedding.class, null, ROTARY),
                    pair(ParallelMlp.class, mlp().build(), mlp().optGated(true).build()),
                    pair(VocabParallelEmbedding.class, null, embedding().build()),
                    pair(
                            ParallelMultiHeadAttention.class,
                            attention().optCausal(true).build(),
                            attention().optCausal(true).optBias(false).build()),
                    pair(
                            ShardingStrategy.class,
                            ShardingStrategy.rowwise(Cut.ofLengths(8, 8)),
                            ShardingStrategy.rowwise(Cut.ofLengths(6, 10))));

    /** Two values of options that do not take all of their type. */
    private static final Map<String, Object[]> SPECIAL =
            Map.ofEntries(
                    pair(
                            "ParallelTransformerDecoderLayer.optCrossAttention(ParallelMultiHeadAttention)",
                            attention().optCrossAttention(true).optBias(false).build(),
                            attention().optCrossAttention(true).build()),
                    pair(
                            "RowParallelLinear.optShardingStrategy(ShardingStrategy)",
                            ShardingStrategy.columnwise(Cut.ofLengths(8, 8)),
                            ShardingStrategy.columnwise(Cut.ofLengths(6, 10))),
                    pair(
                            "ParallelMlp.optShardingStrategy(ShardingStrategy)",
                            ShardingStrategy.tensorParallel(),
                            ShardingStrategy.replicate()),
                    pair(
                            "MixtureOptions.optStrategy(ShardingStrategy)",
                            ShardingStrategy.expertParallel(),
                            ShardingStrategy.tensorParallel()));

    private static final List<Supplier<?>> BUILDERS =
            List.of(
                    () -> ClassificationHead.builder().setUnits(16).optBias(false),
                    () -> ColumnParallelLinear.builder().setUnits(16),
                    () -> RowParallelLinear.builder().setUnits(16).optInputIsParallel(false),
                    PlainSettingsTest::embedding,
                    PlainSettingsTest::attention,
                    RotaryEmbedding::builder,
                    RmsNorm::builder,
                    SyncBatchNorm::builder,
                    ParallelDropout::builder,
                    PlainSettingsTest::mlp,
                    () -> MixtureOfExperts.builder().setExperts(4).setHiddenFeatures(8),
                    () -> RouterLoss.builder().setLoss(Loss.l2Loss()).setNetwork(experts()),
                    () ->
                            ParallelTransformerEncoderLayer.builder()
                                    .setAttention(attention().build())
                                    .setMlp(mlp().build())
                                    .setNorm(layerNorm(1e-5f)),
                    () ->
                            ParallelTransformerDecoderLayer.builder()
                                    .setAttention(attention().optCausal(true).build())
                                    .setMlp(mlp().build())
                                    .setNorm(layerNorm(1e-5f)));

    /** An option of a builder. */
    private record Option(Supplier<?> builder, Method method) {

        Class<?> type() {
            return method.getParameterTypes()[0];
        }

        @Override
        public String toString() {
            String owner = name(builder.get().getClass());
            return "%s.%s(%s)".formatted(owner, method.getName(), type().getSimpleName());
        }
    }

    private static <K> Map.Entry<K, Object[]> pair(K key, Object first, Object second) {
        return Map.entry(key, new Object[] {first, second});
    }

    private static ParallelMultiHeadAttention.Builder attention() {
        return ParallelMultiHeadAttention.builder().setEmbeddingSize(16).setHeads(4);
    }

    private static ParallelMlp.Builder mlp() {
        return ParallelMlp.builder().setUnits(16).setHiddenFeatures(16);
    }

    private static VocabParallelEmbedding.Builder embedding() {
        return VocabParallelEmbedding.builder().setVocabularySize(32).setEmbeddingSize(16);
    }

    private static Block experts() {
        return MixtureOfExperts.builder().setExperts(4).setHiddenFeatures(8).build();
    }

    private static Supplier<Block> layerNorm(float epsilon) {
        return () -> LayerNorm.builder().optEpsilon(epsilon).build();
    }

    /** No builder of the library is left out. */
    @Test
    public void allBuildersAreHere() {
        Set<String> here = new TreeSet<>();
        BUILDERS.forEach(builder -> here.add(name(builder.get().getClass())));
        Set<String> all = new TreeSet<>();
        for (Class<?> type : library("io.djltp.nn")) {
            boolean builder = type.getSimpleName().matches("Builder|MixtureOptions");
            if (builder && !Modifier.isAbstract(type.getModifiers())) {
                all.add(name(type));
            }
        }
        Assert.assertEquals(here, all);
    }

    private static String name(Class<?> builder) {
        Class<?> outer = builder.getDeclaringClass();
        return (outer == null ? builder : outer).getSimpleName();
    }

    private static List<Class<?>> library(String packageName) {
        List<Class<?>> classes = new ArrayList<>();
        new ClassFileImporter()
                .withImportOption(ImportOption.Predefined.DO_NOT_INCLUDE_TESTS)
                .importPackages(packageName)
                .forEach(each -> classes.add(each.reflect()));
        return classes;
    }

    @DataProvider
    public Iterator<Object[]> options() {
        List<Object[]> options = new ArrayList<>();
        for (Supplier<?> builder : BUILDERS) {
            Class<?> type = builder.get().getClass();
            for (Method method : type.getMethods()) {
                if (method.getName().matches("(opt|set)[A-Z].*")
                        && method.getParameterCount() == 1
                        && !method.isBridge()) {
                    options.add(new Object[] {new Option(builder, method)});
                }
            }
        }
        Assert.assertTrue(options.size() > 80, "" + options.size());
        return options.iterator();
    }

    @Test(dataProvider = "options")
    public void everyOptionOfABuilder(Option option) throws ReflectiveOperationException {
        if (NOT_COMPARED.contains(option.toString())) {
            return;
        }
        Object[] values = SPECIAL.getOrDefault(option.toString(), VALUES.get(option.type()));
        Assert.assertNotNull(values, "no values of " + option.type());
        List<Map<String, String>> descriptions = new ArrayList<>();
        for (Object value : values) {
            Object made = option.method.invoke(option.builder.get(), value);
            descriptions.add(describe(made.getClass().getMethod("build").invoke(made)));
        }
        Assert.assertNotEquals(descriptions.get(0), descriptions.get(1));
    }

    private static Map<String, String> describe(Object object) {
        Map<String, String> facts = new TreeMap<>();
        if (object instanceof Block) {
            Block network = (Block) object;
            Map<String, Block> blocks = NetworkComparison.blocks(network);
            blocks.forEach((path, block) -> PlainSettings.add(facts, path, block));
            network.getParameters()
                    .forEach(p -> facts.put(p.getKey(), "" + p.getValue().requiresGradient()));
        } else {
            PlainSettings.add(facts, "it", object);
        }
        return facts;
    }

    @DataProvider
    public Object[][] pairs() {
        return new Object[][] {
            {conv().optPadding(new Shape(1)).build(), conv().optPadding(new Shape(2)).build()},
            {conv().optDilation(new Shape(1)).build(), conv().optDilation(new Shape(2)).build()},
            {Activation.leakyReluBlock(0.1f), Activation.leakyReluBlock(0.2f)},
            {Activation.eluBlock(0.1f), Activation.eluBlock(0.2f)},
            {new NormalInitializer(0.1f), new NormalInitializer(0.2f)},
            {new XavierInitializer(), new NormalInitializer()},
            {loss(new LossOptions(-100, 0, 0)), loss(new LossOptions(-1, 0, 0))},
            {loss(new LossOptions(-100, 0, 0)), loss(new LossOptions(-100, 0.1f, 0))},
            {loss(new LossOptions(-100, 0, 0)), loss(new LossOptions(-100, 0, 0.1f))},
            {
                loss(LossOptions.DEFAULT.withClassWeights(1, 2)),
                loss(LossOptions.DEFAULT.withClassWeights(1, 3))
            },
            {
                loss(LossOptions.DEFAULT.withClassWeights(weights(1))),
                loss(LossOptions.DEFAULT.withClassWeights(weights(2)))
            },
            {loss(LossOptions.DEFAULT), loss(LossOptions.DEFAULT.withReduction(Reduction.SUM))},
            {composite(1), composite(2)},
            {steps(3), steps(4)},
            {cyclical(CyclicalMode.TRIANGULAR), cyclical(CyclicalMode.TRIANGULAR2)},
            {warmUp(0.1f), warmUp(0.2f)},
            {adagrad(steps(3), 1), adagrad(steps(4), 1)},
            {adagrad(steps(3), 1), adagrad(steps(3), 2)},
        };
    }

    @Test(dataProvider = "pairs")
    public void differentSettings(Object first, Object second) {
        Assert.assertNotEquals(describe(first), describe(second));
        Assert.assertEquals(describe(first), describe(first));
    }

    private static Conv1d.Builder conv() {
        return Conv1d.builder().setFilters(2).setKernelShape(new Shape(3));
    }

    private static Loss loss(LossOptions options) {
        return new VocabParallelCrossEntropyLoss("loss", options);
    }

    private static float[] weights(float last) {
        float[] weights = new float[1000];
        Arrays.fill(weights, 1);
        weights[999] = last;
        return weights;
    }

    private static Loss composite(float weight) {
        return new SimpleCompositeLoss()
                .addLoss(new SoftmaxCrossEntropyLoss("loss", weight, -1, true, true));
    }

    private static Tracker steps(int last) {
        return Tracker.multiFactor().setBaseValue(1).setSteps(new int[] {1, last}).build();
    }

    private static Tracker cyclical(CyclicalMode mode) {
        return CyclicalTracker.builder().optMode(mode).build();
    }

    private static Tracker warmUp(float rate) {
        return Tracker.warmUp().setMainTracker(Tracker.fixed(rate)).optWarmUpSteps(3).build();
    }

    private static Optimizer adagrad(ParameterTracker rates, float epsilon) {
        return RowwiseAdagrad.builder().optLearningRateTracker(rates).optEpsilon(epsilon).build();
    }

    /** What is counted or kept, and what an object has of itself, is left out. */
    @Test
    public void stateIsNoSetting() {
        Holder holder = new Holder();
        Map<String, String> facts = new TreeMap<>();
        PlainSettings.addFields(facts, "it", holder);
        Assert.assertEquals(facts, Map.of()); // of a class that is nobody's
        Tracker used = steps(3);
        Map<String, String> before = describe(used);
        used.getNewValue(5); // is past the first step from now on
        Assert.assertEquals(describe(used), before);
    }

    /** A class of a user's. */
    private static final class Holder {
        private final Holder self = this;
        private final long time = System.nanoTime();
    }

    /**
     * No block, loss, optimizer, tracker, initializer or strategy lies where fields are not read,
     * but those that have only other blocks, losses and initializers, or files.
     */
    @Test
    public void allClassesAreRead() {
        List<Class<?>> kinds =
                List.of(
                        Block.class,
                        Loss.class,
                        Optimizer.class,
                        ParameterTracker.class,
                        Initializer.class,
                        ShardingStrategy.class);
        Set<String> unread = new TreeSet<>();
        for (Class<?> type : library("io.djltp")) {
            boolean kind = kinds.stream().anyMatch(each -> each.isAssignableFrom(type));
            if (kind && type.getDeclaredFields().length > 0 && !PlainSettings.isRead(type)) {
                unread.add(type.getSimpleName());
            }
        }
        Assert.assertEquals(
                String.join(" ", unread),
                "DelegatedBlock FrozenBackbone RankLoss RankedNetwork ReplacedEmbedding"
                        + " ShardedInitializer StoredTensorSource TensorSource");
    }
}
