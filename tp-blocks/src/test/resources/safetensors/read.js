// Prints the tensors of a file as the npm package safetensors reads them: name, shape, bits.
const { readFileSync } = require('fs');
const { SafeTensor } = require(process.argv[2]);
const file = new SafeTensor(new Uint8Array(readFileSync(process.argv[3])));
for (const [name, { shape }] of file.metadata) {
  console.log([name, shape.join(','), Buffer.from(file.getTensor(name)).toString('hex')].join('\t'));
}
