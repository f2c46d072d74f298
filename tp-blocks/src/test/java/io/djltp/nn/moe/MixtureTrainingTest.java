package io.djltp.nn.moe;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.DATA_4;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_1;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.MIXED_4;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;

import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.function.UnaryOperator;

/**
 * A mixture of experts between other layers is trained on ranks as it is under DJL's own trainer:
 * outputs, losses and all parameters after steps with momentum.
 */
public class MixtureTrainingTest {

    private static final int FEATURES = 4;
    private static final int ROWS = 7;

    private static final TrainerKind[] KINDS = {
        TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4, MIXED_1, MIXED_2, MIXED_3, MIXED_4, DATA_3, MESH_2X2
    };

    /** Five experts: 2, 2 and 1 on three ranks. */
    private static MixtureOfExperts.Builder mixture() {
        return MixtureOfExperts.builder().setExperts(5).setHiddenFeatures(6);
    }

    private static Block network(boolean cut, MixtureOfExperts.Builder options) {
        return sequence(
                linear(FEATURES),
                tanh(),
                sum(Blocks.identityBlock(), options.build()),
                first(cut, 6),
                tanh(),
                row(cut, 3));
    }

    private static Network of(UnaryOperator<MixtureOfExperts.Builder> options) {
        return Network.of(
                cut -> network(cut, options.apply(mixture())),
                HalfSquareLoss::new,
                Network.regression(ROWS, FEATURES, 3));
    }

    private static Object[] option(String name, UnaryOperator<MixtureOfExperts.Builder> options) {
        return new Object[] {name, options};
    }

    @DataProvider
    public static Object[][] options() {
        ShardingStrategy cut = ShardingStrategy.tensorParallel();
        return new Object[][] {
            option("top-1", o -> o.optTopK(1)),
            option("top-2", o -> o),
            option("top-1 with dropping", o -> o.optTopK(1).optCapacityFactor(0.8)),
            option("not normalized", o -> o.optCapacityFactor(0.6).optNormalizeWeights(false)),
            option(
                    "all experts, gated, with a bias",
                    o ->
                            o.optTopK(5)
                                    .optGated(true)
                                    .optRouterBias(true)
                                    .optActivation(Activation::gelu)),
            option("exchanged", o -> o.optExchangeTokens(true).optCapacityFactor(0.9)),
            option("gated with dropping", o -> o.optCapacityFactor(0.8).optGated(true)),
            option("slices", o -> o.optStrategy(cut).optGated(true)),
            option("slices with dropping", o -> o.optStrategy(cut).optCapacityFactor(0.8)),
        };
    }

    /** With the losses of the router, too. */
    @Test(dataProvider = "options", timeOut = 120_000)
    public void trainedAsByDjl(String name, UnaryOperator<MixtureOfExperts.Builder> options) {
        of(options).assertEqual(KINDS);
        TrainingRun expected = routed(PLAIN, options);
        for (TrainerKind kind : KINDS) {
            routed(kind, options).assertSame(expected, 1e-5);
        }
    }

    private static TrainingRun routed(
            TrainerKind kind, UnaryOperator<MixtureOfExperts.Builder> options) {
        Block block = network(kind.isParallel(), options.apply(mixture()));
        RouterLoss loss =
                RouterLoss.builder()
                        .setLoss(new HalfSquareLoss())
                        .setNetwork(block)
                        .optLoadBalancing(0.3f)
                        .optZLoss(0.1f)
                        .build();
        return TrainingRun.of(
                kind,
                block,
                Configs.of(loss, Configs.sgd(0.1f, 0.5f)),
                Network.regression(ROWS, FEATURES, 3),
                3);
    }

    /** In the body of MIXED mode the tokens of all ranks are gathered, those of [rows, 3] too. */
    @Test(timeOut = 60_000)
    public void theHiddenFeaturesCutInTheBody() {
        int[] rows = {7, 1, 2, 3}; // that leave ranks without a row
        Network.of(
                        cut ->
                                sequences(
                                        cut,
                                        mixture()
                                                .optStrategy(ShardingStrategy.tensorParallel())
                                                .optCapacityFactor(0.7)
                                                .optTopK(1)),
                        HalfSquareLoss::new,
                        (manager, step) ->
                                Network.regression(rows[step % 4], FEATURES, 3).make(manager, step))
                .assertEqual(MIXED_2, MIXED_4);
    }

    private static Block sequences(boolean cut, MixtureOfExperts.Builder options) {
        return sequence(
                linear(3 * FEATURES),
                reshape(-1, 3, FEATURES),
                tanh(),
                options.build(),
                reshape(-1, 3 * FEATURES),
                first(cut, 6),
                tanh(),
                row(cut, 3));
    }

    /** Tokens are the last but one axis, too: [rows, 3, features]. */
    @Test(timeOut = 60_000)
    public void sequences() {
        Network.of(
                        cut -> sequences(cut, mixture().optCapacityFactor(0.7)),
                        HalfSquareLoss::new,
                        Network.regression(ROWS, FEATURES, 3))
                .assertEqual(KINDS);
    }

    /** The block alone, as the whole of a network in MIXED mode, and behind the gather. */
    @Test(timeOut = 60_000)
    public void alone() {
        Network.of(
                        cut -> mixture().optCapacityFactor(0.7).build(),
                        HalfSquareLoss::new,
                        Network.regression(ROWS, FEATURES, FEATURES))
                .assertEqual(KINDS);
        Network.of(
                        cut ->
                                mixture()
                                        .optStrategy(ShardingStrategy.tensorParallel())
                                        .optCapacityFactor(0.7)
                                        .build(),
                        HalfSquareLoss::new,
                        Network.regression(ROWS, FEATURES, FEATURES))
                .assertEqual(KINDS);
        for (boolean exchange : new boolean[] {false, true}) {
            Network.of(
                            cut ->
                                    sequence(
                                            first(cut, 6),
                                            tanh(),
                                            row(cut, FEATURES),
                                            mixture().optExchangeTokens(exchange).build()),
                            HalfSquareLoss::new,
                            Network.regression(ROWS, FEATURES, FEATURES))
                    .assertEqual(MIXED_3, TENSOR_2);
        }
    }

    /** All tokens are alike, and go to one expert; the other four get none. */
    @Test(timeOut = 60_000)
    public void allTokensToOneExpert() {
        for (double factor : new double[] {Double.POSITIVE_INFINITY, 2}) {
            Network.of(
                            cut ->
                                    sequence(
                                            map(x -> x.mul(0).add(1)),
                                            mixture().optTopK(1).optCapacityFactor(factor).build(),
                                            linear(3)),
                            HalfSquareLoss::new,
                            Network.regression(ROWS, FEATURES, 3))
                    .assertEqual(TENSOR_3, MIXED_3, DATA_2);
        }
    }

    /** Batches that leave ranks without a row, and fewer tokens than ranks to divide them over. */
    @Test(timeOut = 60_000)
    public void fewRows() {
        int[] rows = {5, 1, 2, 3};
        for (boolean exchange : new boolean[] {false, true}) {
            Network.of(
                            cut ->
                                    network(
                                            cut,
                                            mixture()
                                                    .optCapacityFactor(1)
                                                    .optExchangeTokens(exchange)),
                            HalfSquareLoss::new,
                            (manager, step) ->
                                    Network.regression(rows[step % 4], FEATURES, 3)
                                            .make(manager, step))
                    .assertEqual(TENSOR_4, MIXED_4, DATA_4, MESH_2X2);
        }
    }
}
