package io.djltp.testing;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.JitModule;
import org.bytedeco.pytorch.QualifiedName;

import java.nio.file.Path;

/** Makes files of TorchScript, as PyTorch's {@code torch.jit.save} does. */
@SuppressWarnings("try") // a scope is used by being open
public final class TorchScript {

    private TorchScript() {}

    /**
     * Writes a linear layer with a hyperbolic tangent.
     *
     * @param file the file
     * @param weight the weight, [units, features]
     * @param bias the bias, [units]
     */
    public static void saveTanhLayer(Path file, NDArray weight, NDArray bias) {
        LibTorch.load();
        try (PointerScope scope = new PointerScope()) {
            JitModule module = new JitModule(new QualifiedName("TanhLayer"));
            module.register_parameter("weight", TensorView.of(weight).tensor().clone(), false);
            module.register_parameter("bias", TensorView.of(bias).tensor().clone(), false);
            module.define(
                    "def forward(self, x):\n"
                            + "    return torch.tanh(torch.mm(x, self.weight.t()) + self.bias)\n");
            module.save(file.toString());
        }
    }
}
