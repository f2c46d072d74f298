package io.djltp.llm;

import io.djltp.collective.Communicator;
import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.internal.decode.RankRows;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;

public class TokenSamplerTest {

    private static final int IDS = 12;
    private static final int DRAWS = 40_000;

    @DataProvider
    public static Object[][] options() {
        GenerationOptions.Builder builder = GenerationOptions.builder().optTemperature(0.7f);
        return new Object[][] {
            {builder.build()},
            {builder.optMinP(0.05f).build()},
            {builder.optMinP(0).optTopK(5).build()},
            {builder.optTopK(0).optTopP(0.8f).build()},
        };
    }

    /** Tokens come as often as their probabilities say: chi-square, 0.1 % of 11 degrees. */
    @Test(dataProvider = "options", timeOut = 60_000)
    public void drawsByTheirProbabilities(GenerationOptions options) throws Exception {
        float[] logits = new float[IDS];
        double[] weights = new double[IDS];
        for (int i = 0; i < IDS; i++) {
            logits[i] = (float) Math.sin(3 * i) * 2;
            weights[i] = Math.exp(logits[i] / options.getTemperature());
        }
        double largest = Arrays.stream(weights).max().orElseThrow();
        double[] sorted = Arrays.stream(weights).map(w -> -w).sorted().map(w -> -w).toArray();
        double all = Arrays.stream(weights).sum();
        double least = options.getMinP() * largest;
        if (options.getTopK() > 0) {
            least = sorted[options.getTopK() - 1];
        }
        double sum = 0;
        for (int i = 0; options.getTopP() < 1 && sum < options.getTopP() * all; i++) {
            least = sorted[i];
            sum += least;
        }
        int[] counts = new int[IDS];
        try (Communicator alone = LocalCommunicator.create(1).get(0);
                RankRows rows = new RankRows(alone, null, 1, 2 * IDS + 2)) {
            TokenSampler sampler = new TokenSampler(rows, 1, 0, IDS, IDS);
            for (int i = 0; i < DRAWS; i++) {
                GenerationOptions seeded = options.toBuilder().optSeed(i / 300).build();
                counts[
                        sampler.choose(
                                        logits,
                                        0,
                                        new DecoderStep.Sampling(
                                                seeded, i % 3, i / 3 % 100, new int[0], false))
                                .id()]++;
            }
        }
        double kept = 0;
        for (double weight : weights) {
            kept += weight >= least ? weight : 0;
        }
        double square = 0;
        for (int i = 0; i < IDS; i++) {
            double expected = weights[i] >= least ? DRAWS * weights[i] / kept : 0;
            Assert.assertEquals(counts[i] == 0, expected < 1, "id " + i + ": " + counts[i]);
            square += expected > 0 ? Math.pow(counts[i] - expected, 2) / expected : 0;
        }
        Assert.assertTrue(square < 31, "chi-square " + square + " " + Arrays.toString(counts));
    }
}
