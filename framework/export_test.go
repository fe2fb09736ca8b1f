package framework

// Parse is Load without its surroundings.
var Parse = parse
