/** Contains what a model costs on a mesh: memory and communication, before it is allocated. */
package io.djltp.cost;
