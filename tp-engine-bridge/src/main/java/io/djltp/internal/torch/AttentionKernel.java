package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.DoubleOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;

/**
 * Libtorch's attention in one operation, which on the CPU and on GPUs never writes the scores of
 * all pairs of positions to memory, neither forward nor backward (FlashAttention: Dao et al., 2022,
 * <a href="https://arxiv.org/abs/2205.14135">arXiv:2205.14135</a>).
 */
@SuppressWarnings("try") // a scope is used by being open
public final class AttentionKernel {

    private AttentionKernel() {}

    /**
     * Computes softmax(q k^T / sqrt(d) + bias) v.
     *
     * <p>If the bias is very low for all keys of a query, such as -1e9, the kernel's sum of
     * exponentials is rounded, and its gradients are not those of the softmax. The caller must then
     * set the result of that query to 0, and its gradient with it.
     *
     * @param query the queries q, [B, H, T, d]
     * @param key the keys k, [B, H, S, d]
     * @param value the values v, [B, H, S, d]
     * @param bias what is added to the scores, [1 or B, 1 or H, 1 or T, S], or {@code null}
     * @param causal whether position t sees the keys 0 to t only; without a bias
     * @return the weighted values, [B, H, T, d], attached to the manager of the queries
     */
    public static NDArray of(
            NDArray query, NDArray key, NDArray value, NDArray bias, boolean causal) {
        LibTorch.load();
        try (PointerScope scope = new PointerScope()) {
            TensorOptional mask =
                    bias == null
                            ? new TensorOptional()
                            : new TensorOptional(TensorView.of(bias).tensor());
            Tensor output =
                    torch.scaled_dot_product_attention(
                            TensorView.of(query).tensor(),
                            TensorView.of(key).tensor(),
                            TensorView.of(value).tensor(),
                            mask,
                            0,
                            causal,
                            new DoubleOptional(),
                            false);
            return TensorView.toArray(output, query.getManager());
        }
    }
}
