package io.djltp.internal.decode;

import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** The function between the two layers of an MLP, of rows. */
@SuppressWarnings("try") // a scope is used by being open
public enum RowActivation {

    /** x times its sigmoid. */
    SILU {
        @Override
        void apply(Tensor x) {
            torch.silu_(x);
        }
    },

    /** The Gaussian error linear unit. */
    GELU {
        @Override
        void apply(Tensor x) {
            torch.gelu_(x);
        }
    },

    /** Its approximation by a hyperbolic tangent. */
    GELU_TANH {
        @Override
        void apply(Tensor x) {
            torch.gelu_(x, "tanh");
        }
    },

    /** The positive part. */
    RELU {
        @Override
        void apply(Tensor x) {
            torch.relu_(x);
        }
    };

    abstract void apply(Tensor x);

    /**
     * Computes act(x) of each row, or with a gate act(g) u of rows [g, u].
     *
     * @param rows where the rows go in; with room for the widest of them
     * @param x the rows, [count, features], or [count, 2 features] with a gate
     * @param count how many
     * @param features the features of a result
     * @param gated whether half of a row is a gate
     * @param y where the results go, [count, features]
     */
    public void apply(
            RowBuffer rows, float[] x, int count, int features, boolean gated, float[] y) {
        int width = gated ? 2 * features : features;
        int most = Math.max(1, rows.capacity() / width); // at a time
        for (int at = 0; at < count; at += most) {
            int part = Math.min(most, count - at);
            rows.memory().put(0, x, at * width, part * width);
            try (TorchScope scope = TorchScope.withoutGraph()) {
                Tensor all = rows.view(part, width);
                Tensor gate = all.narrow(1, 0, features);
                apply(gate);
                if (gated) {
                    gate.mul_(all.narrow(1, features, features));
                }
            }
            for (int i = 0; i < part; i++) {
                rows.memory().get(i * width, y, (at + i) * features, features);
            }
        }
    }
}
