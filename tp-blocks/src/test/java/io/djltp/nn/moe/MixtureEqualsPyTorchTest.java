package io.djltp.nn.moe;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;

import io.djltp.internal.torch.Autograd;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.HalfSquareLoss;

import org.testng.annotations.Test;

import java.util.stream.Stream;

/**
 * The unsharded block and the losses of its router equal PyTorch 1.13, which computed this, token
 * by token:
 *
 * <pre>
 * x, wr = fill(1, 6, 3), fill(2, 4, 3)             # sin(start + i)
 * w1, wg, w2 = fill(3, 4, 5, 3), fill(4, 4, 5, 3), fill(5, 4, 3, 5)
 * logits = x @ wr.T; p = torch.softmax(logits, 1); top, idx = torch.topk(p, k, 1)
 * gates = top / top.sum(1, keepdim=True) if normalize else top
 * room = [math.ceil(factor * 6 * k / 4)] * 4
 * for j in range(k):
 *   for n in range(6):
 *     e = int(idx[n, j])
 *     if room[e] == 0: continue
 *     room[e] -= 1
 *     h = torch.relu(x[n] @ wg[e].T) * (x[n] @ w1[e].T) if gated else torch.relu(x[n] @ w1[e].T)
 *     y[n] += gates[n, j] * (h @ w2[e].T)
 * f = torch.bincount(idx.reshape(-1), minlength=4).float() / (6 * k)
 * z = (torch.logsumexp(logits, 1) ** 2).mean()
 * loss = 0.5 * (y * y).mean() + 0.1 * 4 * (f * p.mean(0)).sum() + 0.01 * z
 * </pre>
 *
 * <p>Of the weights of the experts, the first three gradients, the sum and that of the squares.
 */
public class MixtureEqualsPyTorchTest {

    private static final double TOLERANCE = 1e-5;

    /** Two of four experts get no token, and two tokens are dropped. */
    @Test(timeOut = 60_000)
    public void oneChoice() {
        MixtureOfExperts block = options().optTopK(1).optCapacityFactor(1).build();
        check(
                block,
                0.14296672f,
                """
                0.0069098235 -0.19553182 -0.11783975 0.16682112 -0.017261196 -0.17661373
                0.086769208 -0.20535067 -0.2032696 0.14003402 0.068296745 -0.10128762
                0 0 0 0 0 0""",
                """
                0.0067954571 0.0066104801 0.00034785829 -0.0097124176 -0.0062398156 0.0029696422
                0.0067253816 0.0078017763 0.001705254 -0.0072792047 -0.0050623966 0.0018087556
                0.0048226141 0.0022174523 -0.002426425 -0.0041978974 -0.0022385544 0.0017789056""",
                """
                -0.0072495015 -0.0082883546 -0.0017069322 0.0040828884 0.0067937039 0.0032584188
                0.018735535 0.024850264 0.0081177736 -0.014380335 -0.024647184 -0.012253528""",
                new float[][] {
                    {0, 0, 0, -0.0023224121f, 0.0011962546f}, {0, 0, 0, -0.0621159f, 0.0019998644f}
                });
    }

    @Test(timeOut = 60_000)
    public void twoChoices() {
        MixtureOfExperts block = options().optCapacityFactor(0.8).optGated(true).build();
        check(
                block,
                0.25686899f,
                """
                0.42408496 -0.56364536 -0.7438547 0.24392599 0.2334841 -0.11146472
                0.66186702 -0.3949545 -0.88593429 0.23436727 0.60233212 0.10735039
                0.60649663 -0.29700989 -0.77499759 -0.044399336 0.65808129 0.41774485""",
                """
                0.073919527 0.069670208 0.0013664237 -0.0038184484 -0.013785541 -0.011078274
                0.050800774 0.099445313 0.056660298 0.0066050999 -0.033910152 -0.043248571
                0.078049175 0.074810319 0.0027911938 -0.037177499 -0.051075868 -0.018015318""",
                """
                0.008522315 0.029945876 0.023837335 0.0073550981 0.012335467 0.0059746648
                0.0020728193 -0.0090196757 -0.011819523 -0.01676164 -0.03455323 -0.02057674""",
                new float[][] {
                    {0, 0, 0, 0.19018266f, 0.028997574f},
                    {0, 0, 0, 0.58540642f, 0.08966694f},
                    {0, 0.05136044f, 0, 0.10795493f, 0.02828661f}
                });
    }

    private static MixtureOfExperts.Builder options() {
        return MixtureOfExperts.builder().setExperts(4).setHiddenFeatures(5);
    }

    private static void check(
            MixtureOfExperts block,
            float loss,
            String output,
            String inputGradient,
            String routerGradient,
            float[][] expertGradients) {
        try (NDManager manager = NDManager.newBaseManager()) {
            block.initialize(manager, DataType.FLOAT32, new Shape(6, 3));
            fill(block);
            NDArray x = manager.create(sines(1, 18), new Shape(6, 3));
            x.setRequiresGradient(true);
            NDList labels = new NDList(manager.zeros(new Shape(6, 3)));
            RouterLoss withRouter =
                    RouterLoss.builder()
                            .setLoss(new HalfSquareLoss())
                            .setNetwork(block)
                            .optLoadBalancing(0.1f)
                            .optZLoss(0.01f)
                            .build();
            try (GradientCollector collector = Engine.getInstance().newGradientCollector()) {
                ParameterStore store = new ParameterStore(manager, false);
                // another pass, whose router has no part in the loss of the first
                block.forward(store, new NDList(x.add(manager.ones(x.getShape()))), true);
                NDList y = block.forward(store, new NDList(x), true);
                block.forward(store, new NDList(x.add(manager.ones(x.getShape()))), true);
                close(y.singletonOrThrow(), numbers(output), "output");
                NDArray value = withRouter.evaluate(labels, y);
                close(value, new float[] {loss}, "loss");
                collector.backward(value);
            }
            close(x.getGradient(), numbers(inputGradient), "gradient of the input");
            int number = 0;
            for (var named : block.getDirectParameters()) {
                NDArray gradient = named.getValue().getArray().getGradient();
                if (number == 0) {
                    close(gradient, numbers(routerGradient), named.getKey());
                } else {
                    close(summary(gradient), expertGradients[number - 1], named.getKey());
                }
                number++;
            }
        }
    }

    /** Sets the weights, in the order of the script. */
    @SuppressWarnings("try") // a scope is used by being open
    private static void fill(MixtureOfExperts block) {
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            for (var named : block.getDirectParameters()) {
                Parameter parameter = named.getValue();
                NDArray array = parameter.getArray();
                int start =
                        switch (named.getKey()) {
                            case "routerWeight" -> 2;
                            case "hiddenWeight" -> 3;
                            case "gateWeight" -> 4;
                            default -> 5;
                        };
                float[] values = sines(start, (int) array.size());
                array.muli(0).addi(array.getManager().create(values, array.getShape()));
            }
        }
    }

    private static float[] numbers(String text) {
        return ArrayAssert.floats(Stream.of(text.split("\\s+")).map(Float::valueOf).toList());
    }

    private static float[] sines(int start, int size) {
        float[] values = new float[size];
        for (int i = 0; i < size; i++) {
            values[i] = (float) Math.sin(start + i);
        }
        return values;
    }

    private static NDArray summary(NDArray gradient) {
        float[] values = gradient.toFloatArray();
        float[] summary = {values[0], values[1], values[2], 0, 0};
        for (float value : values) {
            summary[3] += value;
            summary[4] += value * value;
        }
        return gradient.getManager().create(summary);
    }

    private static void close(NDArray actual, float[] expected, String what) {
        ArrayAssert.assertClose(actual.toFloatArray(), expected, TOLERANCE, what);
    }
}
