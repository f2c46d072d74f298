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
                new float[] {
                    0.0069098235f,
                    -0.19553182f,
                    -0.11783975f,
                    0.16682112f,
                    -0.017261196f,
                    -0.17661373f,
                    0.086769208f,
                    -0.20535067f,
                    -0.2032696f,
                    0.14003402f,
                    0.068296745f,
                    -0.10128762f,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0
                },
                new float[] {
                    0.0067954571f,
                    0.0066104801f,
                    0.00034785829f,
                    -0.0097124176f,
                    -0.0062398156f,
                    0.0029696422f,
                    0.0067253816f,
                    0.0078017763f,
                    0.001705254f,
                    -0.0072792047f,
                    -0.0050623966f,
                    0.0018087556f,
                    0.0048226141f,
                    0.0022174523f,
                    -0.002426425f,
                    -0.0041978974f,
                    -0.0022385544f,
                    0.0017789056f
                },
                new float[] {
                    -0.0072495015f,
                    -0.0082883546f,
                    -0.0017069322f,
                    0.0040828884f,
                    0.0067937039f,
                    0.0032584188f,
                    0.018735535f,
                    0.024850264f,
                    0.0081177736f,
                    -0.014380335f,
                    -0.024647184f,
                    -0.012253528f
                },
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
                new float[] {
                    0.42408496f,
                    -0.56364536f,
                    -0.7438547f,
                    0.24392599f,
                    0.2334841f,
                    -0.11146472f,
                    0.66186702f,
                    -0.3949545f,
                    -0.88593429f,
                    0.23436727f,
                    0.60233212f,
                    0.10735039f,
                    0.60649663f,
                    -0.29700989f,
                    -0.77499759f,
                    -0.044399336f,
                    0.65808129f,
                    0.41774485f
                },
                new float[] {
                    0.073919527f,
                    0.069670208f,
                    0.0013664237f,
                    -0.0038184484f,
                    -0.013785541f,
                    -0.011078274f,
                    0.050800774f,
                    0.099445313f,
                    0.056660298f,
                    0.0066050999f,
                    -0.033910152f,
                    -0.043248571f,
                    0.078049175f,
                    0.074810319f,
                    0.0027911938f,
                    -0.037177499f,
                    -0.051075868f,
                    -0.018015318f
                },
                new float[] {
                    0.008522315f,
                    0.029945876f,
                    0.023837335f,
                    0.0073550981f,
                    0.012335467f,
                    0.0059746648f,
                    0.0020728193f,
                    -0.0090196757f,
                    -0.011819523f,
                    -0.01676164f,
                    -0.03455323f,
                    -0.02057674f
                },
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
            float[] output,
            float[] inputGradient,
            float[] routerGradient,
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
                close(y.singletonOrThrow(), output, "output");
                NDArray value = withRouter.evaluate(labels, y);
                close(value, new float[] {loss}, "loss");
                collector.backward(value);
            }
            close(x.getGradient(), inputGradient, "gradient of the input");
            int number = 0;
            for (var named : block.getDirectParameters()) {
                NDArray gradient = named.getValue().getArray().getGradient();
                if (number == 0) {
                    close(gradient, routerGradient, named.getKey());
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
