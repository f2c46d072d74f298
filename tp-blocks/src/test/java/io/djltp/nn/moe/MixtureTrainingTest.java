package io.djltp.nn.moe;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;

import io.djltp.layout.ParallelMode;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

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
        new TrainerKind(ParallelMode.TENSOR, 1),
        new TrainerKind(ParallelMode.TENSOR, 3),
        new TrainerKind(ParallelMode.MIXED, 2),
        new TrainerKind(ParallelMode.MIXED, 3),
        new TrainerKind(ParallelMode.DATA, 3),
        TrainerKind.mesh(2, 2)
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

    @DataProvider
    public static Object[][] options() {
        return new Object[][] {
            {"top-1", (UnaryOperator<MixtureOfExperts.Builder>) o -> o.optTopK(1)},
            {"top-2", (UnaryOperator<MixtureOfExperts.Builder>) o -> o},
            {
                "top-1 with dropping",
                (UnaryOperator<MixtureOfExperts.Builder>) o -> o.optTopK(1).optCapacityFactor(0.8)
            },
            {
                "top-2 with dropping",
                (UnaryOperator<MixtureOfExperts.Builder>)
                        o -> o.optCapacityFactor(0.6).optNormalizeWeights(false)
            },
            {
                "all experts, gated, with a bias",
                (UnaryOperator<MixtureOfExperts.Builder>)
                        o ->
                                o.optTopK(5)
                                        .optGated(true)
                                        .optRouterBias(true)
                                        .optActivation(Activation::gelu)
            },
            {
                "exchanged",
                (UnaryOperator<MixtureOfExperts.Builder>)
                        o -> o.optExchangeTokens(true).optCapacityFactor(0.9)
            }
        };
    }

    @Test(dataProvider = "options", timeOut = 120_000)
    public void trainedAsByDjl(String name, UnaryOperator<MixtureOfExperts.Builder> options) {
        of(options).assertEqual(KINDS);
    }

    @Test(timeOut = 60_000)
    public void theHiddenFeaturesCut() {
        of(o -> o.optStrategy(ShardingStrategy.tensorParallel()).optGated(true))
                .assertEqual(
                        new TrainerKind(ParallelMode.TENSOR, 4),
                        new TrainerKind(ParallelMode.DATA, 2),
                        new TrainerKind(ParallelMode.MIXED, 1),
                        new TrainerKind(ParallelMode.MIXED, 2),
                        new TrainerKind(ParallelMode.MIXED, 3),
                        new TrainerKind(ParallelMode.MIXED, 4),
                        TrainerKind.mesh(2, 2));
    }

    /** In the body of MIXED mode the tokens of all ranks are gathered, those of [rows, 3] too. */
    @Test(timeOut = 60_000)
    public void theHiddenFeaturesCutInTheBody() {
        int[] rows = {7, 1, 2, 3}; // that leave ranks without a row
        Network.of(
                        cut ->
                                sequence(
                                        linear(3 * FEATURES),
                                        reshape(-1, 3, FEATURES),
                                        tanh(),
                                        mixture()
                                                .optStrategy(ShardingStrategy.tensorParallel())
                                                .optCapacityFactor(0.7)
                                                .optTopK(1)
                                                .build(),
                                        reshape(-1, 3 * FEATURES),
                                        first(cut, 6),
                                        tanh(),
                                        row(cut, 3)),
                        HalfSquareLoss::new,
                        (manager, step) ->
                                Network.regression(rows[step % 4], FEATURES, 3).make(manager, step))
                .assertEqual(
                        new TrainerKind(ParallelMode.MIXED, 2),
                        new TrainerKind(ParallelMode.MIXED, 4));
    }

    /** Tokens are the last but one axis, too: [rows, 3, features]. */
    @Test(timeOut = 60_000)
    public void sequences() {
        Network.of(
                        cut ->
                                sequence(
                                        linear(3 * FEATURES),
                                        reshape(-1, 3, FEATURES),
                                        tanh(),
                                        mixture().optCapacityFactor(0.7).build(),
                                        reshape(-1, 3 * FEATURES),
                                        first(cut, 6),
                                        tanh(),
                                        row(cut, 3)),
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
                    .assertEqual(
                            new TrainerKind(ParallelMode.MIXED, 3),
                            new TrainerKind(ParallelMode.TENSOR, 2));
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
                    .assertEqual(
                            new TrainerKind(ParallelMode.TENSOR, 3),
                            new TrainerKind(ParallelMode.MIXED, 3),
                            new TrainerKind(ParallelMode.DATA, 2));
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
                    .assertEqual(
                            new TrainerKind(ParallelMode.TENSOR, 4),
                            new TrainerKind(ParallelMode.MIXED, 4),
                            new TrainerKind(ParallelMode.DATA, 4),
                            TrainerKind.mesh(2, 2));
        }
    }
}
