/** Contains the tests of what a model costs on a mesh. */
package io.djltp.cost;
