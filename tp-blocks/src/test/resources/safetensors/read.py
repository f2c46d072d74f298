# Prints the tensors of a file as Hugging Face's Python package reads them: name, shape, bits.
import sys
from safetensors.numpy import load_file
sys.stdout.reconfigure(encoding='utf-8')
for name, array in load_file(sys.argv[1]).items():
    print(name, ','.join(map(str, array.shape)), array.tobytes().hex(), sep='\t')
